"""Benchmarks of `rollog bench`: real roles on a real broker, a simulated engine, and the ideal to compare with."""
