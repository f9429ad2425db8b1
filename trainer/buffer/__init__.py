"""Samples read and not yet disposed of: the stream, the buffer that makes batches, verdicts."""
