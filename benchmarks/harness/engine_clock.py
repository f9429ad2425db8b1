"""The time of a simulated engine: faster than real time, slower the more requests it is busy with."""

from __future__ import annotations

import asyncio
import heapq
import time
from collections.abc import Callable
from itertools import count

_tolerance_seconds = 1e-9

Slowdown = Callable[[int], float]
"""How many times slower every rollout at a worker is when that many of its slots are occupied."""


def full_speed(num_occupied: int) -> float:
    """An engine that batches all in flight without slowing down."""
    del num_occupied
    return 1.0


def slower_beyond_64(num_occupied: int) -> float:
    """An engine whose decoding step is bound by memory up to 64 slots and by computation beyond.

    Each further 64 occupied slots make every step longer by a quarter: at 192 slots each rollout takes 1.5 times as
    long and the engine makes twice as many tokens per second as at 64.
    """
    return 1.0 + 0.25 * max(0, num_occupied - 64) / 64


class EngineClock:
    """`speed` engine seconds pass per real second, divided by the slowdown of as many requests as sleep.

    A request sleeps for as long as it occupies a slot, so the number of sleepers is the occupancy of the engine.
    """

    def __init__(
        self,
        *,
        speed: float,
        slowdown: Slowdown = full_speed,
        real_clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._speed = speed
        self._slowdown = slowdown
        self._real_clock = real_clock
        self._read_at = real_clock()
        self._now = 0.0
        self._order = count()
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []
        self._num_asleep = 0
        self._timer: asyncio.TimerHandle | None = None

    def now(self) -> float:
        """Engine seconds since the clock was made."""
        read_at = self._real_clock()
        self._now += (read_at - self._read_at) * self._rate
        self._read_at = read_at
        return self._now

    async def sleep(self, seconds: float) -> None:
        """Return after that many engine seconds."""
        if seconds <= 0:
            return
        waking = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (self.now() + seconds, next(self._order), waking))
        self._num_asleep += 1
        self._set_timer()
        try:
            await waking
        finally:
            if waking.cancelled():
                self._leave()
                self._set_timer()

    def wake_due(self) -> None:
        """Wake everybody whose time has come."""
        now = self.now()
        while self._sleepers and self._sleepers[0][0] <= now + _tolerance_seconds:
            _, _, waking = heapq.heappop(self._sleepers)
            if not waking.done():
                waking.set_result(None)
                self._leave()
        self._set_timer()

    @property
    def _rate(self) -> float:
        return self._speed / self._slowdown(self._num_asleep)

    def _leave(self) -> None:
        self.now()  # the time until now passed at the old rate
        self._num_asleep -= 1

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        while self._sleepers and self._sleepers[0][2].done():
            heapq.heappop(self._sleepers)
        if self._sleepers:
            delay = max(0.0, self._sleepers[0][0] - self.now()) / self._rate
            self._timer = asyncio.get_running_loop().call_later(delay, self.wake_due)
