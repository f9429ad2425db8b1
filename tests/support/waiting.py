"""Waiting on a condition with a deadline, the only way tests wait."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

Found = TypeVar("Found")

max_wait_seconds = 50.0
"""For what takes a second on an idle machine. Two such waits are shorter than the time limit of a test."""
_poll_seconds = 0.01


def wait_until(
    condition: Callable[[], Found], timeout_seconds: float = max_wait_seconds, message: str = "condition"
) -> Found:
    """Call `condition` until it returns something true, and return that; AssertionError after the deadline."""
    deadline = time.monotonic() + timeout_seconds
    while not (found := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {timeout_seconds:g} s: {message}")
        time.sleep(_poll_seconds)
    return found
