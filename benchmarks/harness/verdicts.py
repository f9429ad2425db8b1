"""The reward function of the benchmarks: what chance decided about the prompt stands in its row."""

from __future__ import annotations


def verdict(prompt: str, response: str, *, passes: bool) -> float:
    """1 where the group is to pass the filter (mean reward in bounds), else 0."""
    del prompt, response
    return float(passes)
