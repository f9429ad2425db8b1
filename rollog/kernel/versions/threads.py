"""Threads that share the work on one version: copying, comparing, coding, hashing."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from rollog.kernel.machine import num_processors

_most_threads = 8


def num_threads() -> int:
    """As many as there are processors, and at most 8."""
    return min(_most_threads, num_processors())


def threads(name: str, number: int | None = None) -> ThreadPoolExecutor:
    """A pool of so many, or of `num_threads`, whose names begin with `name`."""
    return ThreadPoolExecutor(number or num_threads(), thread_name_prefix=name)
