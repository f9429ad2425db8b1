"""Giving up the start of an engine."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest
from support.waiting import max_wait_seconds, wait_until

from producers.engines.starting import Abandoned, Start
from producers.engines.transformers_engine import TransformersEngine
from rollog.demo.model import model_config
from rollog.kernel.errors import EngineError

if TYPE_CHECKING:
    from pathlib import Path
    from types import FrameType


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
                    except Abandoned:
                        continue
                self.wait()
        except EngineError as error:
            self.error = error

    def wait(self) -> None:
        while True:
            self.is_busy = True
            time.sleep(0.001)


@pytest.mark.parametrize("num_swallowed", [0, 2])
def test_a_start_that_is_abandoned_ends_with_an_error_on_its_own_thread(num_swallowed: int) -> None:
    work = Work(num_swallowed)
    ended_children = []
    work.thread.start()
    wait_until(lambda: work.is_busy)
    work.start.abandon(lambda: ended_children.append(1))
    work.thread.join(max_wait_seconds)
    assert not work.thread.is_alive()
    assert "closed while it was starting" in str(work.error)
    assert len(ended_children) > num_swallowed


def test_a_start_that_has_not_begun_or_has_ended_needs_no_giving_up() -> None:
    start = Start()
    start.abandon(lambda: pytest.fail("nothing is under way"))
    with start.under_way():
        pass
    start.abandon(lambda: pytest.fail("it has ended"))


class TracedWork:
    """A start that ends by itself just as it is given up, on a traced thread that lives on, as under coverage."""

    def __init__(self) -> None:
        self.start = Start()
        self.is_busy, self.may_end, self.may_go_on = (threading.Event() for _ in range(3))
        self.went_on = False
        self.thread = threading.Thread(target=self.run, daemon=True)

    def run(self) -> None:
        sys.settrace(self.trace)  # of this thread only
        with suppress(EngineError), self.start.under_way():
            self.is_busy.set()
            self.may_end.wait()
        self.may_go_on.wait()
        for _ in range(1000):
            pass
        self.went_on = True

    def trace(self, frame: FrameType, _event: str, _argument: object) -> Any:
        return self.trace if frame.f_code is TracedWork.run.__code__ else None


def test_a_thread_whose_start_ended_as_it_was_abandoned_goes_on_undisturbed() -> None:
    for _ in range(30):
        work = TracedWork()
        work.thread.start()
        assert work.is_busy.wait(20)
        work.start.abandon(work.may_end.set)
        work.may_go_on.set()
        work.thread.join(max_wait_seconds)
        assert work.went_on


def test_an_engine_can_be_closed_while_it_starts(tmp_path: Path) -> None:
    model_config().save_pretrained(tmp_path)
    engine = TransformersEngine(str(tmp_path))

    async def scenario() -> None:
        starting = asyncio.create_task(engine.start())
        await asyncio.sleep(0)
        await engine.close()
        await asyncio.gather(starting, return_exceptions=True)

    asyncio.run(asyncio.wait_for(scenario(), 60))
