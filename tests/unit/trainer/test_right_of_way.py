"""Who goes first, who waits for it, and for how long."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
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


@pytest.mark.parametrize(("first", "give"), waits)
def test_whoever_goes_first_is_waited_for_even_where_it_fails(
    first: Callable[[RightOfWay], AbstractContextManager[None]], give: Callable[[RightOfWay], None]
) -> None:
    way = RightOfWay()
    give(way)
    with ThreadPoolExecutor(1) as pool:
        with suppress(MemoryError), first(way):
            given = pool.submit(give, way)
            with pytest.raises(TimeoutError):
                given.result(timeout=0.2)
            raise MemoryError
        given.result()


def test_a_version_that_is_waited_for_does_not_wait_itself() -> None:
    way = RightOfWay()
    with way.awaited():
        way.give_to_copies()


def test_whoever_goes_first_for_long_is_not_waited_for_any_more() -> None:
    way, num_pieces = RightOfWay(longest_seconds=0.2), 10_000

    def give_for_each() -> None:
        for _ in range(num_pieces):
            way.give()

    with way.awaited(), ThreadPoolExecutor(1) as pool:
        pool.submit(give_for_each).result(timeout=60.0)
