"""Who goes first, who waits for it, and for how long."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from trainer.right_of_way import RightOfWay

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

waits = [
    (RightOfWay.copying, RightOfWay.give),
    (RightOfWay.copying, RightOfWay.give_to_copies),
    (RightOfWay.awaited, RightOfWay.give),
]
hour_seconds = 3600.0
soon_seconds = 60.0
"""Whoever does not wait comes within it on any machine, and whoever waits by mistake waits for longer."""


def is_waiting(given: Future[None]) -> bool:
    return not wait([given], timeout=0.2).done


@pytest.mark.parametrize(("first", "give"), waits)
def test_whoever_goes_first_is_waited_for_even_where_it_fails(
    first: Callable[[RightOfWay], AbstractContextManager[None]], give: Callable[[RightOfWay], None]
) -> None:
    way = RightOfWay(longest_seconds=hour_seconds)
    give(way)
    with ThreadPoolExecutor(1) as pool:
        with suppress(MemoryError), first(way):
            given = pool.submit(give, way)
            assert is_waiting(given)
            raise MemoryError
        given.result(timeout=soon_seconds)


def test_a_version_that_is_waited_for_does_not_wait_itself() -> None:
    way = RightOfWay(longest_seconds=hour_seconds)
    with ThreadPoolExecutor(1) as pool, way.awaited():
        pool.submit(way.give_to_copies).result(timeout=soon_seconds)


def test_whoever_goes_first_for_long_is_not_waited_for_any_more() -> None:
    now = 0.0
    way = RightOfWay(longest_seconds=hour_seconds, clock=lambda: now)
    with ThreadPoolExecutor(1) as pool, way.awaited():
        now = hour_seconds
        pool.submit(way.give).result(timeout=soon_seconds)


def test_whoever_waited_goes_on_for_as_long_before_it_waits_again() -> None:
    now = 0.0
    way = RightOfWay(longest_seconds=hour_seconds, clock=lambda: now)
    with ThreadPoolExecutor(1) as pool:
        with way.awaited():
            given = pool.submit(way.give)
            assert is_waiting(given)
            now = 100.0
        given.result(timeout=soon_seconds)
        with way.awaited():
            now = 199.0
            pool.submit(way.give).result(timeout=soon_seconds)
            now = 200.0
            given = pool.submit(way.give)
            assert is_waiting(given)
        given.result(timeout=soon_seconds)
