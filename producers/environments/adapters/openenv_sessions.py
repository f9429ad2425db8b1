"""Sessions at a server that speaks OpenEnv's protocol: JSON messages over a WebSocket at `/ws`, one session each.

| sent                                  | answered                                                             |
| ---                                   | ---                                                                  |
| `{"type": "reset", "data": {"seed"}}` | `{"type": "observation", "data": {"observation", "reward", "done"}}` |
| `{"type": "step", "data": ACTION}`    | the same, or `{"type": "error", "data": {"message", "code"}}`        |
| `{"type": "close"}`                   | nothing                                                              |

The seed that is sent has 31 bits, folded from the episode's.

Needs the package aiohttp (extra `agents`), and none of OpenEnv's.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import Any

import aiohttp

from producers.environments.adapters.folded_seeds import folded_seed
from producers.environments.ports import Declaration, Observation, StepResult

_seed_bits = 31
_most_message_bytes = 16 << 20
_close_seconds = 2.0


class OpenEnvSession:
    """The server at `url` (http, https, ws or wss).

    An action is the JSON object that the agent writes, or, with `action_field`, an object with what the agent says in
    that field. What the agent sees is the observation as JSON, or, with `observation_field`, that field of it.
    """

    def __init__(
        self,
        *,
        url: str,
        action_field: str | None = None,
        observation_field: str | None = None,
        max_turns: int = 100,
    ) -> None:
        scheme, separator, rest = url.rstrip("/").partition("://")
        if not separator or scheme not in {"http", "https", "ws", "wss"}:
            raise ValueError(f"url = {url!r} is no address of a server, as http://127.0.0.1:8000 is")
        self.declaration = Declaration("none", max_turns=max_turns)
        self._url = f"{scheme.replace('http', 'ws', 1)}://{rest}/ws"
        self._action_field = action_field
        self._observation_field = observation_field
        self._session: aiohttp.ClientSession | None = None
        self._socket: aiohttp.ClientWebSocketResponse | None = None
        self._answers: asyncio.Queue[aiohttp.WSMessage] = asyncio.Queue(maxsize=4)
        self._reading: asyncio.Task[None] | None = None

    async def reset(self, seed: int) -> Observation:
        """Begin an episode, with a session at the server when there is none."""
        if self._socket is None:
            await self._connect()
        data = await self._asked({"type": "reset", "data": {"seed": folded_seed(seed, _seed_bits)}})
        return Observation.of(self._text(data))

    async def step(self, action: str) -> StepResult:
        """Act; what is no action of the server's is answered by its error and costs the turn."""
        try:
            sent = json.loads(action) if self._action_field is None else {self._action_field: action}
        except ValueError as error:
            return StepResult.of(f"An action is a JSON object: {error}")
        if not isinstance(sent, dict):
            return StepResult.of("An action is a JSON object.")
        try:
            data = await self._asked({"type": "step", "data": sent})
        except InvalidAction as error:
            return StepResult.of(str(error))
        return StepResult.of(
            self._text(data), reward=float(data.get("reward") or 0.0), done=data.get("done") is True
        )

    async def close(self) -> None:
        """End the session at the server."""
        if self._socket is not None:
            with contextlib.suppress(ConnectionError, aiohttp.ClientError):
                await self._socket.send_json({"type": "close"})
            await self._socket.close()
        if self._reading is not None:
            self._reading.cancel()
        if self._session is not None:
            await self._session.close()

    async def _connect(self) -> None:
        self._session = aiohttp.ClientSession()
        self._socket = await self._session.ws_connect(
            self._url,
            max_msg_size=_most_message_bytes,
            timeout=aiohttp.ClientWSTimeout(ws_close=_close_seconds),
        )
        # Reading goes on between two calls: else nobody would answer the server's pings while the agent thinks.
        self._reading = asyncio.get_running_loop().create_task(
            self._read(self._socket), name="openenv answers"
        )

    async def _read(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        while True:
            message = await socket.receive()
            await self._answers.put(message)
            if message.type is not aiohttp.WSMsgType.TEXT:
                return

    async def _asked(self, message: dict[str, Any]) -> dict[str, Any]:
        """The data of the answer. Raises InvalidAction, or ConnectionError for whatever else went wrong."""
        assert self._socket is not None
        await self._socket.send_json(message)
        answer = await self._answers.get()
        if answer.type is not aiohttp.WSMsgType.TEXT:
            raise ConnectionError(
                f"the server at {self._url} closed the session: {answer.data} {answer.extra or ''}"
            )
        content = json.loads(answer.data)
        data = content.get("data", {})
        if content.get("type") == "observation":
            return dict(data)
        said = f"{data.get('message', 'no message')} ({data.get('code', 'no code')})"
        if message["type"] == "step" and data.get("code") == "VALIDATION_ERROR":
            raise InvalidAction(f"That is no action: {said}")
        raise ConnectionError(
            f"the server at {self._url} answered {message['type']} by {content.get('type')}: {said}"
        )

    def _text(self, data: dict[str, Any]) -> str:
        observation = data.get("observation")
        if self._observation_field is None or not isinstance(observation, dict):
            return json.dumps(observation, ensure_ascii=False)
        if self._observation_field not in observation:
            raise ValueError(
                f"observation_field = {self._observation_field!r} is none of the server's: {sorted(observation)}"
            )
        value = observation[self._observation_field]
        return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


class InvalidAction(Exception):
    """The server says that an action does not fit its schema."""
