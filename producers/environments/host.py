"""One process that holds environments: reads calls from a socket, writes answers, JSON lines both ways.

Run as `python -m producers.environments.host FD MEMORY_BYTES OBSERVATION_BYTES SNAPSHOT_BYTES`; needs Python 3.10 and
imports only the standard library and what its environments import. It ends when the other side closes the socket.

Each episode has a thread of its own, so that one which waits (for a server, a program, a clock) holds up no other.
What an environment starts does not get the socket: a program, because the socket closes on exec; a fork, because it
closes its copy at once. What it prints goes nowhere: the other side gave it no output.
"""

from __future__ import annotations

import json
import os
import platform
import queue
import socket
import sys
import threading
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

from producers.environments.episode import Bounds, Episode
from producers.environments.messages import declaration_as_json, observation_as_json, result_as_json
from producers.environments.names import make_environment
from producers.processes.error_texts import error_message, error_with_place
from producers.processes.walls import limit_this_process

if TYPE_CHECKING:
    from collections.abc import Mapping

_chunk_bytes = 1 << 18
_own_folder = Path(__file__).resolve().parent
_standard_library = Path(os.__file__).resolve().parent


class AnswerWriter:
    """Writes answers of all threads, one whole line at a time."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._lock = threading.Lock()

    def write(self, answer: Mapping[str, Any]) -> None:
        """Write one line."""
        line = json.dumps(answer, ensure_ascii=False, allow_nan=False).encode() + b"\n"
        with self._lock:
            self._connection.sendall(line)


class EpisodeThread:
    """Makes one environment and serves its calls in the order in which they came.

    To close it ends what came before: an `async def` method under way is cancelled, what has not begun never does.
    """

    def __init__(self, writer: AnswerWriter, bounds: Bounds) -> None:
        self._writer = writer
        self._bounds = bounds
        self._calls: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self._episode: Episode | None = None
        self._is_closing = False
        threading.Thread(target=self._run, name="episode", daemon=True).start()

    def take(self, call: dict[str, Any]) -> None:
        """Serve a call after those that came before it."""
        if call["operation"] == "close":
            self._is_closing = True
            # Before the call is there to be served: closing itself is not cancelled.
            if self._episode is not None:
                self._episode.interrupt()
        self._calls.put(call)

    def _run(self) -> None:
        while True:
            call = self._calls.get()
            try:
                answer = self._answer(call)
            except BaseException as error:  # noqa: BLE001  # an environment may raise anything, SystemExit too
                answer = {"error": _described(error)}
            try:
                self._writer.write({"call": call["call"], **answer})
            except OSError:
                return  # the other side is gone, and the process ends
            if call["operation"] == "close":
                return

    def _answer(self, call: Mapping[str, Any]) -> dict[str, Any]:
        operation = call["operation"]
        if operation == "open":
            environment = make_environment(call["environment"], call["parameters"])
            self._episode = Episode(environment, self._bounds)
            return {"declaration": declaration_as_json(self._episode.declaration)}
        episode = self._episode
        if operation == "close":
            if episode is not None:
                episode.close()
            return {}
        if self._is_closing or episode is None:
            raise ValueError("the episode is being closed" if episode else "the environment was not made")
        if operation == "reset":
            return {"observation": observation_as_json(episode.reset(call["seed"]))}
        if operation == "step":
            action = call["action"]
            if not isinstance(action, str):
                action = {int(seat): text for seat, text in action.items()}
            return {"result": result_as_json(episode.step(action))}
        if operation == "snapshot":
            return {"snapshot": episode.snapshot()}
        if operation == "restore":
            return {"observation": observation_as_json(episode.restore(call["snapshot"]))}
        raise ValueError(f"there is no operation {operation!r}")


def serve(connection: socket.socket, bounds: Bounds) -> None:
    """Hand calls to the threads of their episodes until the socket is closed."""
    writer = AnswerWriter(connection)
    writer.write({"ready": platform.python_version()})
    episodes: dict[str, EpisodeThread] = {}
    rest = b""
    while chunk := connection.recv(_chunk_bytes):
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            call = json.loads(line)
            name, operation = call["episode"], call["operation"]
            if operation == "open":
                episodes[name] = EpisodeThread(writer, bounds)
            if name not in episodes:
                writer.write(_answer_without_episode(call))
                continue
            episodes[name].take(call)
            if operation == "close":
                del episodes[name]


def _answer_without_episode(call: Mapping[str, Any]) -> dict[str, Any]:
    """What a call of an episode that is not open gets: there is nothing to close, and nothing else can be done."""
    operation = call["operation"]
    error = {} if operation == "close" else {"error": f"{operation} of an episode that is not open"}
    return {"call": call["call"], **error}


def _described(error: BaseException) -> str:
    """What went wrong, and where in the environment's own code."""
    frames = [
        frame for frame in traceback.extract_tb(error.__traceback__) if _is_foreign(Path(frame.filename))
    ]
    if isinstance(error, ValueError) and not frames:
        return error_message(error)
    return error_with_place(error, frames)


def _is_foreign(file: Path) -> bool:
    """Whether a file is neither ours nor the standard library's."""
    path = file.resolve()
    if path.is_relative_to(_standard_library):
        return "site-packages" in path.parts
    return not path.is_relative_to(_own_folder)


def main() -> None:
    """Serve one connection, then end whatever the threads are at."""
    descriptor, max_memory_bytes, max_observation_bytes, max_snapshot_bytes = map(int, sys.argv[1:])
    limit_this_process(max_memory_bytes)
    with socket.socket(fileno=descriptor) as connection:
        connection.set_inheritable(False)
        os.register_at_fork(after_in_child=connection.close)
        serve(connection, Bounds(max_observation_bytes, max_snapshot_bytes))
    # Threads that hang would keep the interpreter from ending.
    os._exit(0)


if __name__ == "__main__":
    main()
