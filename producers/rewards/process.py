"""One process that computes rewards: reads calls from a socket, writes results, JSON lines both ways.

Run as `python -m producers.rewards.process FD BYTES SECONDS REWARD`: the most memory it may take, and the longest time
of one call of an `async def` function (that of a plain one only the other side can end). The reward is
`module:function`, a ready reward's name, or components as JSON. The first line says whether that was found, and whether
its calls run at once. It ends when the other side closes the socket.

What the function starts does not get the socket: a program, because the socket closes on exec; a fork, because it
closes its copy at once. Else a child that stays would keep the socket open after this process has ended.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
from typing import Any, cast

from producers.processes.walls import limit_this_process
from producers.rewards.functions import (
    RewardFunction,
    RewardResult,
    await_reward_function,
    call_reward_function,
    is_concurrent,
)
from producers.rewards.library.catalogue import load_reward
from rollog.kernel.errors import DataError, RewardError

_chunk_bytes = 1 << 18


def serve(connection: socket.socket, function: RewardFunction) -> None:
    """Answer calls of a plain function in order until the socket is closed."""
    rest = b""
    while chunk := connection.recv(_chunk_bytes):
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            # Each answer goes out at once: the other side times the calls by them.
            connection.sendall(_answer(function, line))


class ConcurrentServer(asyncio.Protocol):
    """Answers calls of an `async def` function, each as soon as it is known, until the socket is closed."""

    def __init__(self, function: RewardFunction, timeout_seconds: float) -> None:
        self._function = function
        self._timeout_seconds = timeout_seconds
        self._calls: set[asyncio.Task[None]] = set()
        self._rest = b""
        self.ended = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The socket is served from now on."""
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """Begin the calls that came."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            call = asyncio.get_running_loop().create_task(self._serve(line), name="reward call")
            self._calls.add(call)
            call.add_done_callback(self._calls.discard)

    def connection_lost(self, exc: Exception | None) -> None:
        """The worker has left."""
        del exc
        self.ended.set()

    async def _serve(self, line: bytes) -> None:
        name, prompt, response, fields = json.loads(line)
        timeout_seconds = self._timeout_seconds
        try:
            answer = _result_line(
                name,
                await await_reward_function(
                    self._function, prompt, response, fields, timeout_seconds=timeout_seconds
                ),
            )
        except RewardError as error:
            answer = _error_line(name, str(error))
        except asyncio.CancelledError:
            # Only the function itself cancels its call: this process ends without cancelling any.
            answer = _error_line(name, "the reward function was cancelled by its own code")
        self._transport.write(answer)


async def serve_concurrently(
    connection: socket.socket, function: RewardFunction, timeout_seconds: float
) -> None:
    """Answer calls of an `async def` function until the socket is closed."""
    connection.setblocking(False)
    server = ConcurrentServer(function, timeout_seconds)
    await asyncio.get_running_loop().create_connection(lambda: server, sock=connection)
    await server.ended.wait()


def main() -> None:
    """Load the function, say so, and serve."""
    descriptor, max_memory_bytes, timeout_seconds, reference = sys.argv[1:]
    limit_this_process(int(max_memory_bytes))
    with socket.socket(fileno=int(descriptor)) as connection:
        connection.set_inheritable(False)
        os.register_at_fork(after_in_child=connection.close)
        try:
            function = load_reward(reference)
        except DataError as error:
            connection.sendall(_line({"error": str(error)}))
            return
        concurrent = is_concurrent(function)
        connection.sendall(_line({"is_concurrent": concurrent}))
        if concurrent:
            asyncio.run(serve_concurrently(connection, function, float(timeout_seconds)))
        else:
            serve(connection, function)


def _answer(function: RewardFunction, line: bytes) -> bytes:
    name, prompt, response, fields = json.loads(line)
    try:
        return _result_line(name, call_reward_function(function, prompt, response, fields))
    except RewardError as error:
        return _error_line(name, str(error))


def _result_line(name: str, result: RewardResult) -> bytes:
    return _line(
        {
            "call": name,
            "reward": result.reward,
            "components": result.components,
            "turn_rewards": result.turn_rewards,
        }
    )


def _error_line(name: str, error: str) -> bytes:
    return _line({"call": name, "error": error})


def _line(answer: dict[str, Any]) -> bytes:
    return json.dumps(answer).encode() + b"\n"


if __name__ == "__main__":
    main()
