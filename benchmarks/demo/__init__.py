"""The demo over several seeds, its negative control, and a bare loop."""
