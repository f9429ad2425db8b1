"""One process that computes rewards: reads calls from a socket, writes results, JSON lines both ways.

Run as `python -m producers.rewards.process FD MODULE:FUNCTION`. Its first line says whether the function was
found. It ends when the other side closes the socket.
"""

from __future__ import annotations

import json
import socket
import sys
from typing import Any

from producers.rewards.functions import RewardFunction, call_reward_function, load_reward_function
from rollog.kernel.errors import DataError, RewardError

_chunk_bytes = 1 << 18


def answer(function: RewardFunction, line: bytes) -> dict[str, Any]:
    """The result of one call: reward, components and rewards of turns, or an error."""
    prompt, response, fields = json.loads(line)
    try:
        result = call_reward_function(function, prompt, response, fields)
    except RewardError as error:
        return {"error": str(error)}
    return {"reward": result.reward, "components": result.components, "turn_rewards": result.turn_rewards}


def serve(connection: socket.socket, function: RewardFunction) -> None:
    """Answer calls in order until the socket is closed."""
    rest = b""
    while chunk := connection.recv(_chunk_bytes):
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            # Each answer goes out at once: the other side times the calls by them.
            connection.sendall(json.dumps(answer(function, line)).encode() + b"\n")


def main() -> None:
    """Load the function, say so, and serve."""
    descriptor, reference = sys.argv[1:]
    with socket.socket(fileno=int(descriptor)) as connection:
        try:
            function = load_reward_function(reference)
        except DataError as error:
            connection.sendall(json.dumps({"error": str(error)}).encode() + b"\n")
            return
        connection.sendall(b"{}\n")
        serve(connection, function)


if __name__ == "__main__":
    main()
