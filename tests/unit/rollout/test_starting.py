"""Giving up the start of an engine."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import TYPE_CHECKING

import pytest
from waiting import wait_until

from producers.engines.starting import GivenUp, Start
from producers.engines.transformers_engine import TransformersEngine
from rollog.demo.model import model_config
from rollog.errors import EngineError

if TYPE_CHECKING:
    from pathlib import Path


class Work:
    """A start that never ends by itself, and that swallows the first attempts to end it."""

    def __init__(self, num_swallowed: int = 0) -> None:
        self.start = Start()
        self.num_swallowed = num_swallowed
        self.is_busy = False
        self.error: BaseException | None = None
        self.thread = threading.Thread(target=self.run, daemon=True)

    def run(self) -> None:
        try:
            with self.start.under_way():
                for _ in range(self.num_swallowed):
                    try:
                        self.wait()
                    except GivenUp:
                        continue
                self.wait()
        except EngineError as error:
            self.error = error

    def wait(self) -> None:
        while True:
            self.is_busy = True
            time.sleep(0.001)


@pytest.mark.parametrize("num_swallowed", [0, 2])
def test_a_start_that_is_given_up_ends_with_an_error_on_its_own_thread(num_swallowed: int) -> None:
    work = Work(num_swallowed)
    ended_children = []
    work.thread.start()
    wait_until(lambda: work.is_busy)
    work.start.give_up(lambda: ended_children.append(1))
    work.thread.join(20)
    assert not work.thread.is_alive()
    assert "closed while it was starting" in str(work.error)
    assert len(ended_children) > num_swallowed


def test_a_start_that_has_not_begun_or_has_ended_needs_no_giving_up() -> None:
    start = Start()
    start.give_up(lambda: pytest.fail("nothing is under way"))
    with start.under_way():
        pass
    start.give_up(lambda: pytest.fail("it has ended"))


def test_an_engine_can_be_closed_while_it_starts(tmp_path: Path) -> None:
    model_config().save_pretrained(tmp_path)
    engine = TransformersEngine(str(tmp_path))

    async def scenario() -> None:
        starting = asyncio.create_task(engine.start())
        await asyncio.sleep(0)
        await engine.close()
        await asyncio.gather(starting, return_exceptions=True)

    asyncio.run(asyncio.wait_for(scenario(), 60))
