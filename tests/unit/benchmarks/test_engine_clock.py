"""The simulated engine's time, with real time turned by hand."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from benchmarks.harness.engine_clock import EngineClock

if TYPE_CHECKING:
    from collections.abc import Coroutine


class Turned:
    """Real time that stands still until it is moved."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


class Sleepers:
    """Requests asleep on a clock, and the engine times at which they woke."""

    def __init__(self, clock: EngineClock) -> None:
        self.clock = clock
        self.woken: dict[float, float] = {}
        self.tasks: list[asyncio.Task[None]] = []

    async def add(self, *seconds: float) -> None:
        self.tasks += [asyncio.create_task(self._sleep(each)) for each in seconds]
        await settle()

    async def _sleep(self, seconds: float) -> None:
        await self.clock.sleep(seconds)
        self.woken[seconds] = round(self.clock.now(), 6)


def turn(work: Coroutine[None, None, None]) -> None:
    asyncio.run(work)


def test_engine_time_runs_as_many_times_faster_as_its_speed_says() -> None:
    real = Turned()
    clock = EngineClock(speed=10.0, real_clock=real)
    real.now = 2.0
    assert clock.now() == 20.0


def test_sleepers_wake_when_their_engine_time_has_come_and_not_before() -> None:
    async def work() -> None:
        real = Turned()
        sleepers = Sleepers(EngineClock(speed=10.0, real_clock=real))
        await sleepers.add(5.0, 8.0)
        for real.now in (0.4, 0.6):
            sleepers.clock.wake_due()
            await settle()
        assert sleepers.woken == {5.0: 6.0}
        real.now = 0.8
        sleepers.clock.wake_due()
        await settle()
        assert sleepers.woken == {5.0: 6.0, 8.0: 8.0}

    turn(work())


def test_engine_time_runs_slower_while_more_requests_are_busy() -> None:
    async def work() -> None:
        real = Turned()
        clock = EngineClock(speed=1.0, slowdown=lambda busy: float(max(1, busy)), real_clock=real)
        sleepers = Sleepers(clock)
        await sleepers.add(1.0, 2.0)
        real.now = 2.0
        clock.wake_due()
        await settle()
        assert sleepers.woken == {1.0: 1.0}
        real.now = 3.0
        clock.wake_due()
        await settle()
        assert sleepers.woken == {1.0: 1.0, 2.0: 2.0}

    turn(work())


def test_a_request_that_is_aborted_no_longer_slows_the_engine() -> None:
    async def work() -> None:
        real = Turned()
        clock = EngineClock(speed=1.0, slowdown=lambda busy: float(max(1, busy)), real_clock=real)
        sleepers = Sleepers(clock)
        await sleepers.add(4.0, 9.0)
        real.now = 2.0
        sleepers.tasks[1].cancel()
        await settle()
        real.now = 5.0
        clock.wake_due()
        await settle()
        assert sleepers.woken == {4.0: 4.0}

    turn(work())


def test_no_time_at_all_is_slept_at_once() -> None:
    turn(EngineClock(speed=1.0).sleep(0.0))
