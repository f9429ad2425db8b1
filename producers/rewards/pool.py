"""Rewards from a few processes, so that nothing the user's function does can stop the run.

Calls go over sockets as JSON lines, several at a time. Whatever goes wrong with one call raises RewardError for its
sample alone.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections import deque
from typing import TYPE_CHECKING, Any

from producers.rewards.worker import RewardCall, RewardWorker
from rollog.kernel.processes import launcher_command

if TYPE_CHECKING:
    from collections.abc import Mapping

    from producers.rewards.functions import RewardResult


class RewardPool:
    """A fixed number of reward processes, each replaced when it dies or is killed."""

    def __init__(self, function: str, *, num_processes: int = 1, timeout_seconds: float = 10.0) -> None:
        self._reference = function
        self._timeout_seconds = timeout_seconds
        self._num_processes = num_processes
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
        line = json.dumps([prompt, response, dict(fields)]).encode() + b"\n"
        call = RewardCall(line, asyncio.get_running_loop().create_future())
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
        while self._waiting:
            ready = [worker for worker in self._workers if worker.room > 0]
            if not ready:
                return
            worker = min(ready, key=lambda worker: len(worker.calls))
            # With one worker everything that fits goes in one write; with several they take turns.
            count = min(worker.room, max(1, len(self._waiting) // len(ready)), len(self._waiting))
            worker.send([self._waiting.popleft() for _ in range(count)])

    def fail_waiting(self, reason: str) -> None:
        """Fail what waits while no process is there to take it."""
        while self._waiting and not any(worker.is_open for worker in self._workers):
            self._waiting.popleft().fail(reason)

    def take_back(self, calls: list[RewardCall]) -> None:
        """Take back calls that were sent to a process that died before it got to them."""
        self._waiting.extendleft(reversed(calls))

    def spawn_arguments(self, descriptor: int) -> list[str]:
        """Command line of one process."""
        command = [sys.executable, "-m", "producers.rewards.process", str(descriptor), self._reference]
        return launcher_command(command)

    @property
    def timeout_seconds(self) -> float:
        """Longest time of one call."""
        return self._timeout_seconds
