"""The guard before vLLM's routes, asked as a server asks it."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from producers.engines.vllm_guard import Guard
from rollog.kernel.errors import ConfigError


@pytest.fixture(autouse=True)
def _key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_API_KEY", "sesame")


def asked(
    path: str,
    body: bytes = b"",
    *,
    headers: list[tuple[bytes, bytes]] | None = None,
    kind: str = "http",
    pieces: int = 1,
) -> tuple[int | str, bytes]:
    """Status and body of the answer; 200 and the body that arrived, where the request was passed on."""
    sent: list[dict[str, Any]] = []
    size = max(1, -(-len(body) // pieces))
    parts = [body[at : at + size] for at in range(0, max(1, len(body)), size)]
    arriving = [
        {"type": "http.request", "body": part, "more_body": number < len(parts) - 1}
        for number, part in enumerate(parts)
    ]

    async def receive() -> Any:
        return arriving.pop(0) if arriving else {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.append(dict(message))

    async def app(scope: Any, receive: Any, send: Any) -> None:
        read = bytearray()
        while scope["type"] == "http" and (message := await receive())["type"] == "http.request":
            read += message["body"]
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": bytes(read)})

    scope = {
        "type": kind,
        "path": path,
        "method": "POST",
        "headers": with_key() if headers is None else headers,
    }
    asyncio.run(Guard(app)(scope, receive, send))
    if kind != "http":
        return sent[0]["type"], b""
    return sent[0]["status"], sent[1]["body"]


def with_key(value: bytes = b"Bearer sesame") -> list[tuple[bytes, bytes]]:
    return [(b"host", b"x"), (b"authorization", value)]


def a_call(method: object) -> bytes:
    return json.dumps({"method": method, "args": ["a"]}).encode()


@pytest.mark.parametrize("path", ["/pause", "/weight_info", "/collective_rpc", "/v1/models", "/version"])
@pytest.mark.parametrize(
    "headers",
    [
        [],
        with_key(b""),
        with_key(b"sesame"),
        with_key(b"Basic sesame"),
        with_key(b"Bearer Sesame"),
        with_key(b"Bearer "),
        with_key() + with_key(b"Bearer other"),
    ],
)
def test_without_the_key_no_route_is_reached(path: str, headers: list[tuple[bytes, bytes]]) -> None:
    assert asked(path, a_call("rollog_loaded"), headers=headers)[0] == 401


def test_health_alone_needs_no_key() -> None:
    assert asked("/health", headers=[])[0] == 200


other_routes = (
    "/sleep /server_info /update_weights /weight_checker /start_profile /v1/completions /docs /invocations"
)
other_spellings = "/pause/ //pause /PAUSE /pause%20 /openapi.json /reset_prefix_cache"


@pytest.mark.parametrize("path", ["", *other_routes.split(), *other_spellings.split()])
def test_routes_that_no_worker_asks_are_not_found(path: str) -> None:
    assert asked(path)[0] == 404


def test_sockets_are_closed_and_life_cycle_events_passed_on() -> None:
    assert asked("/v1/realtime", kind="websocket")[0] == "websocket.close"
    assert asked("", kind="lifespan")[0] == "http.response.start"


@pytest.mark.parametrize("method", ["rollog_describe", "rollog_load", "rollog_loaded"])
@pytest.mark.parametrize("pieces", [1, 5])
def test_the_calls_of_a_worker_arrive_as_they_were_sent(method: str, pieces: int) -> None:
    assert asked("/collective_rpc", a_call(method), pieces=pieces) == (200, a_call(method))


@pytest.mark.parametrize(
    "body",
    [
        a_call("rollog_load_weights"),
        a_call("execute_model"),
        a_call("rollog_load\x00"),
        a_call(["rollog_load"]),
        a_call(None),
        b'{"method": "rollog_load", "method": "sleep"}',
        b"[]",
        b"",
        b"\xff",
        b"[" * 50_000,
        b'{"method": "rollog_load", "args": ["' + b"x" * (64 << 10) + b'"]}',
    ],
)
def test_no_other_method_of_vllms_workers_can_be_called(body: bytes) -> None:
    assert asked("/collective_rpc", body)[0] == 403


def test_a_server_without_a_key_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VLLM_API_KEY")
    with pytest.raises(ConfigError, match="VLLM_API_KEY is not set"):
        Guard(lambda *_: asyncio.sleep(0))
