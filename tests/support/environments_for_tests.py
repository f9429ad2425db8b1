"""Environments that misbehave as they are told, for the tests of the pool. They run in processes of their own."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from producers.environments.ports import Declaration, Observation, StepResult

if TYPE_CHECKING:
    from collections.abc import Mapping


class Misbehaving:
    """Does at reset, or at each step, what the parameter or the action says; else it echoes."""

    declaration = Declaration("replay", max_turns=1000)

    def __init__(self, *, at_reset: str = "", on_close: str = "") -> None:
        self._at_reset = at_reset
        self._on_close = on_close

    def reset(self, seed: int) -> Observation:
        return Observation.of(behave(self._at_reset) or f"seed {seed}")

    def step(self, action: str) -> Any:
        if action == "no result":
            return "text"
        if action == "bad reward":
            return StepResult.of("x", reward=float("nan"))
        if action == "wrong seat":
            return StepResult(Observation({3: "x"}, (3,)))
        if action == "large info":
            return StepResult.of("x", what="y" * 100_000)
        return StepResult.of(behave(action) or f"you said {action}", reward=0.5, done=action == "end")

    def close(self) -> None:
        behave(self._on_close)


def behave(what: str) -> str:
    word, _, rest = what.partition(" ")
    if word == "hang":
        while True:
            pass
    if word == "sleep":
        wait_for_file(Path(rest))
    if word == "raise":
        raise KeyError(rest)
    if word == "exit":
        sys.exit(3)
    if word == "crash":
        os._exit(7)
    if word == "huge":
        return "é" * int(rest)
    if word == "surrogate":
        return "\ud800"
    if word == "print":
        for _ in range(int(rest)):
            print('{"call": "x", "result": {}}' * 40)
            print("noise" * 40, file=sys.stderr)
    if word == "pid":
        return str(os.getpid())
    if word == "seed of hashes":
        return os.environ["PYTHONHASHSEED"]
    if word == "garbage":
        write_to_the_sockets(b"no json\n" if rest == "line" else b"x" * (16 << 20))
    if word == "orphan":
        child = os.fork()
        if child == 0:
            while True:
                time.sleep(60)
        return str(child)
    return ""


def wait_for_file(path: Path) -> None:
    """Go on when somebody has made the file; the test's own time-out bounds it."""
    while not path.exists():
        time.sleep(0.005)


def write_to_the_sockets(data: bytes) -> None:
    """What a library does that takes a descriptor for its own."""
    for name in os.listdir("/proc/self/fd"):
        try:
            if os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                os.write(int(name), data)
        except OSError:
            continue


class AsyncEcho:
    """Methods that are `async def`, and a task that goes on between them."""

    declaration = Declaration("none", max_turns=1000)

    def __init__(self, *, waiting_for: str = "") -> None:
        self._waiting_for = waiting_for
        self._turns = 0

    async def reset(self, seed: int) -> Observation:
        self._task = asyncio.get_running_loop().create_task(self._count())
        return Observation.of(f"seed {seed}")

    async def step(self, action: str) -> StepResult:
        while action == "wait" and not Path(self._waiting_for).exists():
            await asyncio.sleep(0.005)
        return StepResult.of(f"{self._turns > 0}", done=action == "end")

    async def close(self) -> None:
        self._task.cancel()

    async def _count(self) -> None:
        while True:
            self._turns += 1
            if self._waiting_for:
                Path(self._waiting_for).touch()
            await asyncio.sleep(0.005)


class Counter:
    """Adds up numbers; its state is a snapshot."""

    declaration = Declaration("snapshot", max_turns=4)

    def __init__(self) -> None:
        self._sum = 0

    def reset(self, seed: int) -> Observation:
        self._sum = seed
        return Observation.of(str(self._sum))

    def step(self, action: str) -> StepResult:
        self._sum += int(action)
        return StepResult.of(str(self._sum))

    def snapshot(self) -> str:
        return json.dumps(self._sum)

    def restore(self, snapshot: str) -> Observation:
        self._sum = json.loads(snapshot)
        return Observation.of(str(self._sum))

    def close(self) -> None:
        pass


class Together:
    """Three seats that act at once; seat 0 leaves first."""

    declaration = Declaration("replay", num_seats=3, max_turns=3)

    def reset(self, seed: int) -> Observation:
        return Observation(dict.fromkeys(range(3), f"seed {seed}"), (0, 1, 2))

    def step(self, action: Mapping[int, str]) -> StepResult:
        said = " ".join(action[seat] for seat in sorted(action))
        return StepResult(
            Observation({1: said, 2: said}, (1, 2)),
            dict.fromkeys(action, 1.0),
            frozenset({0}),
            truncated=False,
        )

    def close(self) -> None:
        pass


class Lacking:
    """No environment."""


def no_snapshots() -> Misbehaving:
    environment = Misbehaving()
    environment.declaration = Declaration("snapshot")  # type: ignore[misc]  # an instance's own, on purpose
    return environment
