"""The reward function of the benchmarks: what chance decided about the prompt stands in its row."""

from __future__ import annotations

import asyncio


def verdict(prompt: str, response: str, *, passes: bool) -> float:
    """1 where the group is to pass the filter (mean reward in bounds), else 0."""
    del prompt, response
    return float(passes)


async def judged_verdict(prompt: str, response: str, *, passes: bool, judge_seconds: float) -> float:
    """The same from a judge that takes so many real seconds."""
    await asyncio.sleep(judge_seconds)
    return verdict(prompt, response, passes=passes)
