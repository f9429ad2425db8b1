"""Rewards from a few processes, so that nothing the user's function does can stop the run.

Calls go over sockets as JSON lines, several at a time, `max_in_flight` of them at once. Whatever goes wrong with one
call raises RewardError for its sample alone.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Any

from producers.processes.walls import ProcessWalls
from producers.rewards.calls import RewardCall
from producers.rewards.worker import RewardWorker

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from producers.rewards.functions import RewardResult


class RewardPool:
    """A fixed number of reward processes, each replaced when it dies or is killed."""

    def __init__(
        self,
        function: str,
        *,
        num_processes: int = 1,
        timeout_seconds: float = 10.0,
        max_in_flight: int = 64,
        walls: ProcessWalls | None = None,
    ) -> None:
        self._reference = function
        self.walls = walls or ProcessWalls()
        self._timeout_seconds = timeout_seconds
        self._num_processes = num_processes
        self._max_in_flight = max_in_flight
        self._waiting: deque[RewardCall] = deque()
        self._workers: list[RewardWorker] = []
        self._flush_scheduled = False
        self.num_kills = 0

    @property
    def pids(self) -> list[int]:
        """Process ids of the processes that run now."""
        return [worker.process.pid for worker in self._workers if worker.process is not None]

    async def start(self) -> None:
        """Start the processes and import the function in each."""
        self._workers = [RewardWorker(self) for _ in range(self._num_processes)]
        await asyncio.gather(*(worker.open() for worker in self._workers))

    async def score(self, prompt: object, response: str, fields: Mapping[str, Any]) -> RewardResult:
        """The reward of one response. Raises RewardError."""
        call = RewardCall.of(prompt, response, fields)
        self._waiting.append(call)
        if not self._flush_scheduled:
            # Calls made in the same turn of the loop share one write.
            self._flush_scheduled = True
            asyncio.get_running_loop().call_soon(self.distribute)
        return await call.result

    async def close(self) -> None:
        """End all processes."""
        while self._waiting:
            self._waiting.popleft().fail("the worker is leaving")
        await asyncio.gather(*(worker.close() for worker in self._workers))

    def distribute(self) -> None:
        """Send waiting calls to the workers that have room, the least busy first."""
        self._flush_scheduled = False
        free = self._max_in_flight - sum(len(worker.calls) for worker in self._workers)
        while self._waiting and free > 0:
            ready = [worker for worker in self._workers if worker.room_for(self._waiting[0]) > 0]
            if not ready:
                return
            worker = min(ready, key=lambda worker: len(worker.calls))
            # With one worker everything that fits goes in one write; with several they take turns. A call that may run
            # in small company only comes before all others and goes by itself.
            room = 1 if self._waiting[0].is_suspect else worker.room_for(self._waiting[0])
            count = min(room, free, max(1, len(self._waiting) // len(ready)), len(self._waiting))
            worker.send([self._waiting.popleft() for _ in range(count)])
            free -= count

    def fail_waiting(self, reason: str) -> None:
        """Fail what waits while no process is there to take it."""
        while self._waiting and not any(worker.is_open for worker in self._workers):
            self._waiting.popleft().fail(reason)

    def take_back(self, calls: Sequence[RewardCall]) -> None:
        """Take back the calls of a process that has ended, but for those that nobody awaits any more."""
        self._waiting.extendleft(call for call in reversed(calls) if not call.result.done())

    @property
    def process_arguments(self) -> list[str]:
        """What one process is told, as words of its command line."""
        return [str(self.walls.max_memory_bytes), str(self._timeout_seconds), self._reference]

    @property
    def timeout_seconds(self) -> float:
        """Longest time of one call."""
        return self._timeout_seconds
