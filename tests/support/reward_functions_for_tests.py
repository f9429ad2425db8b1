"""Reward functions that do what users' functions do, good and bad."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

values = {
    "mapping": {"reward": True, "format": 0.5, "prompt_length": 2},
    "turns": {"reward": 1.5, "turn_rewards": [1, 0.5]},
    "no turns": {"reward": 1.5, "turn_rewards": 0.5},
    "endless turn": {"reward": 1.5, "turn_rewards": [0.5, float("inf")]},
    "nan": float("nan"),
    "inf": float("inf"),
    "text": "1.0",
    "nothing": None,
    "no key": {"score": 1.0},
    "huge": 10**400,
    "unprintable": {"reward": 10**5000},
}


def reward(prompt: Any, response: str, *, behaviour: str = "length") -> Any:
    """Does what the field `behaviour` of the dataset row says."""
    if behaviour == "raise":
        raise KeyError(prompt)
    if behaviour == "exit":
        os._exit(3)
    while behaviour == "hang":
        time.sleep(1)
    if behaviour in _attacks:
        return _attacks[behaviour](str(prompt))
    if behaviour == "prompt length":
        return len(prompt)
    return values.get(behaviour, len(response))


running: dict[str, int] = {"now": 0, "most": 0}
"""Calls of `concurrent_reward` in this process."""


async def concurrent_reward(
    prompt: Any, response: str, *, behaviour: str = "length", company: int = 1
) -> Any:
    """Waits until it runs `company` times at once, then does as `reward` does, or worse."""
    running["now"] += 1
    running["most"] = max(running.values())
    try:
        while running["most"] < company:  # noqa: ASYNC110  # an event would belong to one loop, tests have several
            await asyncio.sleep(0.001)
        if behaviour == "most at once":
            for _ in range(20):
                await asyncio.sleep(0)
            return running["most"]
        if behaviour == "wait for ever":
            await asyncio.Event().wait()
        if behaviour == "cancel itself":
            raise asyncio.CancelledError
        return reward(prompt, response, behaviour=behaviour)
    finally:
        running["now"] -= 1


def undeclared_coroutine(_prompt: Any, _response: str, **_fields: Any) -> Any:
    """Not declared as `async def`, though it returns a coroutine."""
    return concurrent_reward(_prompt, _response)


def _leave_pool_and_hang(_prompt: str) -> None:
    ProcessPoolExecutor(1, mp_context=get_context("fork")).submit(time.sleep, 600)
    time.sleep(600)


def _leave_daemon_and_exit(path: str) -> None:
    pid = os.fork()
    if not pid:
        time.sleep(600)
        os._exit(0)
    Path(path).write_text(str(pid), encoding="utf-8")
    os._exit(3)


def _leave_unregistered_fork_and_exit(path: str) -> None:
    """A child that keeps every descriptor, as a fork in a C library makes it."""
    import ctypes  # noqa: PLC0415  # only here

    pid = ctypes.CDLL(None).fork()
    while not pid:
        time.sleep(600)
    Path(path).write_text(str(pid), encoding="utf-8")
    os._exit(3)


def _both_sides_of_a_fork(_prompt: str) -> float:
    return 5.0 if os.fork() else 7.0


def _flood(_prompt: str) -> float:
    for _ in range(200):
        sys.stdout.write("x" * 10_000)
        sys.stderr.write("y" * 10_000)
    return 4.0


def _write_to_sockets(lines: bytes) -> None:
    # The answer socket has the number that it had in the process of the tests, which may have many files open.
    for link in list(Path("/proc/self/fd").iterdir()):
        try:
            if link.readlink().name.startswith("socket"):
                os.write(int(link.name), lines)
        except OSError:
            continue
    time.sleep(600)


_attacks: dict[str, Any] = {
    "pool and hang": _leave_pool_and_hang,
    "daemon and exit": _leave_daemon_and_exit,
    "bare fork and exit": _leave_unregistered_fork_and_exit,
    "both sides": _both_sides_of_a_fork,
    "flood": _flood,
    "variables": lambda _prompt: {"reward": 1.0, **dict.fromkeys(os.environ, 1.0)},
    "swallow memory": lambda _prompt: len(bytearray(1 << 30)),
    "swallow memory in a child": lambda _prompt: (
        subprocess.run([sys.executable, "-c", "bytearray(1 << 30)"], check=True).returncode
    ),
    "sys.exit": lambda _prompt: sys.exit(3),
    "no json": lambda _prompt: _write_to_sockets(b"hello\n"),
    "half an answer": lambda _prompt: _write_to_sockets(b'{"reward": 9}\n'),
    "huge answer": lambda _prompt: _write_to_sockets(
        b'{"reward": 1e999, "components": {}, "turn_rewards": []}\n'
    ),
    "whole answer": lambda _prompt: _write_to_sockets(
        b'{"reward": 9, "components": {}, "turn_rewards": []}\n'
    ),
    "endless line": lambda _prompt: _write_to_sockets(b"x" * (3 << 20)),
}

not_callable = 3
