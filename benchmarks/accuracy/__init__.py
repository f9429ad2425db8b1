"""Time to the demo's target accuracy, synchronous against asynchronous, on real engines."""
