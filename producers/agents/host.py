"""The process that imports an agent's function once, and forks one process for each session.

Run as `python -m producers.agents.host FD MEMORY_BYTES REFERENCE`; needs Python 3.10 on Linux and imports only the
standard library and what the agent imports. FD is a socket of packets:

    {"begin": name} with a socket -->   a process is forked: it reads its order from that socket, calls the function,
                                        writes one line and ends
    {"kill": name}                -->   the process is killed with all that descends from it
    <-- {"ready": version} once, or {"error": text}
    <-- {"ended": name, "status": n}    it is dead, and so is what was left in its process group

Where the other side closes the socket everything is killed. A session's process dies with this one, has no copy of this
socket, and gives what it starts none of its own: a program, because it closes on exec; a fork, which closes it at once.
"""

from __future__ import annotations

import asyncio
import ctypes
import importlib
import inspect
import json
import os
import platform
import random
import select
import signal
import socket
import sys
import traceback
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from producers.agents.given import AgentTask, PolicyAccess
from producers.processes.ending import kill_group, kill_tree
from producers.processes.error_texts import error_with_place, most_error_characters
from producers.processes.walls import limit_this_process

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_pr_set_pdeathsig = 1
_packet_bytes = 4096
_chunk_bytes = 1 << 18
_reward_keys = ("reward", "components", "turn_rewards")
_libc = ctypes.CDLL(None)


class AgentProcesses:
    """The processes that are forked here, by the names of their sessions."""

    def __init__(self, control: socket.socket, function: Callable[..., Any]) -> None:
        self._control = control
        self._function = function
        self._pids: dict[str, int] = {}
        self._ends: dict[int, str] = {}
        """Which session's process a pidfd is of."""
        self._poll = select.poll()
        self._poll.register(control, select.POLLIN)

    def serve(self) -> None:
        """Heed packets until the other side closes the socket, then kill everything."""
        while True:
            for descriptor, _ in self._poll.poll():
                if descriptor != self._control.fileno():
                    self._ended(descriptor)
                elif not self._heed():
                    self._kill_all()
                    return

    def _heed(self) -> bool:
        packet, files, _, _ = socket.recv_fds(self._control, _packet_bytes, 1)
        if not packet:
            return False
        order = json.loads(packet)
        if "begin" in order:
            self._begin(order["begin"], files[0])
        elif (pid := self._pids.get(order["kill"])) is not None:
            kill_tree(pid)
        return True

    def _begin(self, name: str, descriptor: int) -> None:
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            self._control.close()
            for other in self._ends:
                os.close(other)
            become_agent(socket.socket(fileno=descriptor), self._function, parent)
        os.close(descriptor)
        self._pids[name] = pid
        ended = os.pidfd_open(pid)
        self._ends[ended] = name
        self._poll.register(ended, select.POLLIN)

    def _ended(self, descriptor: int) -> None:
        """A process has ended: kill what it left behind while its id is still its own, then give that back."""
        name = self._ends.pop(descriptor)
        pid = self._pids.pop(name)
        self._poll.unregister(descriptor)
        os.close(descriptor)
        kill_group(pid)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        _send(self._control, {"ended": name, "status": status})

    def _kill_all(self) -> None:
        for pid in self._pids.values():
            kill_tree(pid)


def become_agent(connection: socket.socket, function: Callable[..., Any], parent: int) -> None:
    """Turn a forked process into one session of the agent. Does not return."""
    try:
        os.setsid()
        _libc.prctl(_pr_set_pdeathsig, int(signal.SIGKILL), 0, 0, 0)
        if os.getppid() != parent:
            return
        connection.set_inheritable(False)
        os.register_at_fork(after_in_child=connection.close)
        answer = _answer_to(_read_line(connection), function)
        connection.sendall(json.dumps(answer).encode() + b"\n")
    except OSError:
        pass  # the worker is gone, or has ended this session
    finally:
        os._exit(0)


def load_function(reference: str) -> Callable[..., Any]:
    """The function named `module:function`; the current directory is searched too. Raises ValueError."""
    module_name, _, name = reference.partition(":")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.append(here)
    try:
        function = getattr(importlib.import_module(module_name), name)
    except Exception as error:  # a user's module may raise anything while it is imported
        raise ValueError(
            f"agent.function = {reference!r} cannot be imported by {sys.executable}: {type(error).__name__}: {error}; "
            "give module:function, importable from the current directory, and an interpreter that has what it needs as "
            "agent.python"
        ) from error
    if not callable(function):
        raise ValueError(  # noqa: TRY004  # one error for whatever cannot be loaded
            f"agent.function = {reference!r} is not callable, but {type(function).__name__}"
        )
    return function  # type: ignore[no-any-return]  # getattr knows no type


def _answer_to(line: bytes, function: Callable[..., Any]) -> dict[str, Any]:
    order = json.loads(line)
    policy = PolicyAccess(**order["policy"])
    task = AgentTask(**order["task"])
    os.environ["OPENAI_BASE_URL"] = policy.base_url
    os.environ["OPENAI_API_KEY"] = policy.api_key
    _seed(task.seed)
    try:
        return _given(_called(function, task, policy))
    except BaseException as error:  # noqa: BLE001  # an agent may raise anything, SystemExit too
        return {"error": error_with_place(error, traceback.extract_tb(error.__traceback__))}


def _called(function: Callable[..., Any], task: AgentTask, policy: PolicyAccess) -> object:
    value = function(task, policy)
    if inspect.iscoroutine(value):
        return asyncio.run(value)
    return value


def _given(value: object) -> dict[str, Any]:
    """What a function returned, as it is sent. Raises ValueError."""
    if value is None or isinstance(value, str):
        return {"answer": value}
    if isinstance(value, dict) and value.keys() <= {"answer", *_reward_keys}:
        given: dict[str, Any] = json.loads(json.dumps(value, allow_nan=False))
        return given
    shown = f"a dict with {sorted(map(str, value))}" if isinstance(value, dict) else type(value).__name__
    raise ValueError(
        f"the agent's function returned {shown}; it may return nothing, its answer as text, or a dict with the keys "
        "answer, reward, components, turn_rewards"
    )


def _seed(seed: int) -> None:
    # Each fork would draw the same numbers.
    random.seed(seed)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(seed % 2**32)


def _read_line(connection: socket.socket) -> bytes:
    line = b""
    while not line.endswith(b"\n"):
        chunk = connection.recv(_chunk_bytes)
        if not chunk:
            raise OSError("the order ended before its end")
        line += chunk
    return line


def _send(control: socket.socket, packet: Mapping[str, Any]) -> None:
    with suppress(OSError):  # the other side is gone, which the next look shows
        control.send(json.dumps(packet).encode())


def main() -> None:
    """Import the function, say so, and serve."""
    descriptor, max_memory_bytes, reference = sys.argv[1:]
    limit_this_process(int(max_memory_bytes))
    with socket.socket(fileno=int(descriptor)) as control:
        control.set_inheritable(False)
        try:
            function = load_function(reference)
        except ValueError as error:
            _send(control, {"error": str(error)[:most_error_characters]})
            return
        _send(control, {"ready": platform.python_version()})
        AgentProcesses(control, function).serve()
    os._exit(0)  # threads that the agent's module started would keep the interpreter from ending


if __name__ == "__main__":
    main()
