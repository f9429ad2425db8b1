"""Sandboxes for code that is not `async`: what a coroutine gives, waited for."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Coroutine

Value = TypeVar("Value")


def run_to_end(work: Coroutine[Any, Any, Value]) -> Value:
    """The value of a coroutine, also where this thread is already in a loop."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work)
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, work).result()
