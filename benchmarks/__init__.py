"""Experiments, one folder each, run by `python -m benchmarks.NAME`: what is claimed of rollog, measured."""
