"""Waiting on a condition with a deadline, the only way tests wait."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

Found = TypeVar("Found")

_poll_seconds = 0.01


def wait_until(
    condition: Callable[[], Found], timeout_seconds: float = 20.0, message: str = "condition"
) -> Found:
    """Call `condition` until it returns something true, and return that; AssertionError after the deadline."""
    deadline = time.monotonic() + timeout_seconds
    while not (found := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {timeout_seconds:g} s: {message}")
        time.sleep(_poll_seconds)
    return found
