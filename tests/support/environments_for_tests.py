"""Environments that misbehave as they are told, for the tests of the pool. They run in processes of their own."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from producers.environments.ports import Declaration, Observation, StepResult

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


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
    """Do what the first word says with the rest, if it says anything; a text that comes of it is what is seen."""
    word, _, rest = what.partition(" ")
    return behaviours.get(word, nothing)(rest)


def nothing(_: str) -> str:
    return ""


def hang(path: str) -> str:
    """Tell a file that it begins, if one is named, and never end."""
    if path:
        Path(path).touch()
    while True:
        pass


def raise_error(text: str) -> str:
    raise KeyError(text)


def print_much(times: str) -> str:
    for _ in range(int(times)):
        sys.stdout.write('{"call": "x", "result": {}}\n' * 40)
        sys.stderr.write("noise\n" * 40)
    return ""


def start_orphan(_: str) -> str:
    child = os.fork()
    while child == 0:
        time.sleep(60)
    return str(child)


def wait_for_file(path: str) -> str:
    """Go on when somebody has made the file; the test's own time-out bounds it."""
    while not Path(path).exists():
        time.sleep(0.005)
    return ""


garbage = {"line": b"no json\n", "flood": b"x" * (16 << 20), "brackets": b"[" * 100_000 + b"\n"}


def write_to_the_sockets(what: str) -> str:
    """What a library does that takes a descriptor for its own."""
    for link in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            if str(link.readlink()).startswith("socket:"):
                os.write(int(link.name), garbage[what])
    return ""


behaviours: dict[str, Callable[[str], str]] = {
    "hang": hang,
    "sleep": wait_for_file,
    "raise": raise_error,
    "exit": lambda _: sys.exit(3),
    "crash": lambda _: os._exit(7),
    "huge": lambda size: "é" * int(size),
    "surrogate": lambda _: "\ud800",
    "print": print_much,
    "garbage": write_to_the_sockets,
    "orphan": start_orphan,
}


class AsyncEcho:
    """Methods that are `async def`, and a task that goes on between them."""

    declaration = Declaration("none", max_turns=1000)

    def __init__(self, *, touches: str) -> None:
        self._touches = touches
        self._has_run = asyncio.Event()

    async def reset(self, seed: int) -> Observation:
        self._task = asyncio.get_running_loop().create_task(self._run())
        return Observation.of(f"seed {seed}")

    async def step(self, action: str) -> StepResult:
        await self._has_run.wait()
        return StepResult.of(f"you said {action}", done=action == "end")

    async def close(self) -> None:
        self._task.cancel()

    async def _run(self) -> None:
        await asyncio.sleep(0.05)
        self._has_run.set()
        Path(self._touches).touch()  # noqa: ASYNC240  # a test's file


class Waiting:
    """Waits for ever in the method that is named, tells a file when it begins to, and another when it is cancelled."""

    declaration = Declaration("none", max_turns=1000)

    def __init__(self, *, directory: str, waits_in: str = "step") -> None:
        self._directory = Path(directory)
        self._waits_in = waits_in

    async def reset(self, seed: int) -> Observation:
        await self._wait_in("reset")
        return Observation.of(f"seed {seed}")

    async def step(self, action: str) -> StepResult:
        await self._wait_in("step")
        return StepResult.of(f"you said {action}")

    async def close(self) -> None:
        # As what goes to a server does, closing takes a turn of the loop.
        await asyncio.sleep(0)
        (self._directory / "closed").touch()

    async def _wait_in(self, method: str) -> None:
        if method != self._waits_in:
            return
        (self._directory / "waits").touch()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            (self._directory / "cancelled").touch()
            raise


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
    environment.declaration = Declaration("snapshot")
    return environment


def dies_while_it_is_made(*, mark: str, num_times: int) -> Misbehaving:
    """Ends its process, the first so many times that one is asked for."""
    times = len(list(Path(mark).parent.glob(f"{Path(mark).name}*")))
    if times < num_times:
        Path(f"{mark}{times}").touch()
        os._exit(3)
    return Misbehaving()
