"""What stands before vLLM's HTTP routes when a server works for a run: `vllm serve --middleware`.

Loading weights needs vLLM's development routes (VLLM_SERVER_DEV_MODE=1). vLLM asks for no key there, whatever
`--api-key` says, and its `/collective_rpc` calls any method of its workers. With this guard

    every route but /health  needs the key of VLLM_API_KEY
    other routes             than those that a worker of a run asks are not found
    /collective_rpc          calls the three methods of `vllm_worker.ServedWeightLoader` and nothing else

A server that has no key does not start with it.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
from typing import TYPE_CHECKING, Any

from rollog.kernel.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, MutableMapping

    Message = MutableMapping[str, Any]
    Receive = Callable[[], Awaitable[Message]]
    Send = Callable[[Message], Awaitable[None]]
    Application = Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]

key_variable = "VLLM_API_KEY"
_open_paths = frozenset({"/health"})
_paths = _open_paths | {
    "/version",
    "/metrics",
    "/v1/models",
    "/inference/v1/generate",
    "/inference/v1/abort_requests",
    "/pause",
    "/resume",
    "/weight_info",
    "/update_weight_version",
    "/collective_rpc",
}
_methods = frozenset({"rollog_describe", "rollog_load", "rollog_loaded"})
_most_call_bytes = 64 << 10


class Guard:
    """ASGI middleware. Raises ConfigError where VLLM_API_KEY is not set."""

    def __init__(self, app: Application) -> None:
        key = os.environ.get(key_variable)
        if not key:
            raise ConfigError(f"{key_variable} is not set: a server that loads weights on demand needs a key")
        self._app = app
        self._digest = hashlib.sha256(key.encode()).digest()

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        """Answer 401, 403 or 404, or pass the request on."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
        elif scope["type"] != "http" or scope["path"] not in _paths:
            await _refuse(scope, send, 404, "not found")
        elif scope["path"] not in _open_paths and not self._has_key(scope):
            await _refuse(scope, send, 401, "unauthorized")
        elif scope["path"] == "/collective_rpc":
            await self._call(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    def _has_key(self, scope: MutableMapping[str, Any]) -> bool:
        given = [value for name, value in scope["headers"] if name == b"authorization"]
        kind, _, key = given[0].partition(b" ") if len(given) == 1 else (b"", b"", b"")
        is_equal = secrets.compare_digest(hashlib.sha256(key).digest(), self._digest)
        return is_equal and kind.lower() == b"bearer"

    async def _call(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        body = await _body(receive)
        if body is None or not _is_allowed(body):
            await _refuse(scope, send, 403, "this method of the workers is not called from outside")
            return
        messages = [{"type": "http.request", "body": body, "more_body": False}]

        async def again() -> Message:
            return messages.pop() if messages else await receive()

        await self._app(scope, again, send)


async def _body(receive: Receive) -> bytes | None:
    """The request's body; None where it is too long, or its sender is gone."""
    body = bytearray()
    while True:
        message = await receive()
        body += message.get("body", b"")
        if message["type"] != "http.request" or len(body) > _most_call_bytes:
            return None
        if not message.get("more_body", False):
            return bytes(body)


def _is_allowed(body: bytes) -> bool:
    try:
        call = json.loads(body)
    except (ValueError, RecursionError):
        return False
    return isinstance(call, dict) and isinstance(call.get("method"), str) and call["method"] in _methods


async def _refuse(scope: MutableMapping[str, Any], send: Send, status: int, reason: str) -> None:
    if scope["type"] != "http":
        await send({"type": "websocket.close", "code": 1008})
        return
    headers = [(b"content-type", b"application/json")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": json.dumps({"error": reason}).encode()})
