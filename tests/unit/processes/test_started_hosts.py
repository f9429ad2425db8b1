"""A host that ends before it is ready is started again, a few times."""

from __future__ import annotations

import asyncio

import pytest

from producers.processes.hosts import HostEnded, started
from rollog.kernel.errors import DataError


class Starts:
    """Fails so often, then starts."""

    def __init__(self, *failures: Exception) -> None:
        self._failures = list(failures)
        self.count = 0

    async def __call__(self) -> str:
        self.count += 1
        if self._failures:
            raise self._failures.pop(0)
        return "ready"


def test_a_host_that_is_killed_while_it_starts_is_started_again() -> None:
    starts = Starts(HostEnded("killed"), HostEnded("killed"))
    assert asyncio.run(started(starts)) == "ready"
    assert starts.count == 3


def test_a_host_that_never_becomes_ready_is_told_in_the_end() -> None:
    starts = Starts(*(HostEnded(f"ended {number}") for number in range(9)))
    with pytest.raises(HostEnded, match="ended 2"):
        asyncio.run(started(starts))


def test_what_fails_by_itself_is_not_tried_again() -> None:
    starts = Starts(DataError("no such module"))
    with pytest.raises(DataError, match="no such module"):
        asyncio.run(started(starts))
    assert starts.count == 1
