"""A server that speaks OpenEnv's protocol, on loopback: it counts what its agents say, and ends at "end"."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from aiohttp import WSMsgType, web

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


async def serve_session(request: web.Request) -> web.WebSocketResponse:
    """One session: reset, step, close."""
    socket = web.WebSocketResponse()
    await socket.prepare(request)
    said: list[str] = []
    async for message in socket:
        if message.type is not WSMsgType.TEXT:
            break
        asked = message.json()
        if asked["type"] == "close":
            break
        await socket.send_json(answer(asked, said))
    return socket


def answer(asked: dict[str, Any], said: list[str]) -> dict[str, Any]:
    """The answer to one message."""
    if asked["type"] == "reset":
        said.clear()
        return observation({"text": f"seed {asked['data']['seed']}", "turns": 0}, reward=None, done=False)
    data = asked["data"]
    if "message" not in data:
        return {"type": "error", "data": {"message": "message is missing", "code": "VALIDATION_ERROR"}}
    if data["message"] == "break":
        return {"type": "error", "data": {"message": "it broke", "code": "EXECUTION_ERROR"}}
    said.append(data["message"])
    done = said[-1] == "end"
    return observation({"text": " ".join(said), "turns": len(said)}, reward=float(done), done=done)


def observation(content: dict[str, Any], *, reward: float | None, done: bool) -> dict[str, Any]:
    """A message that brings an observation."""
    return {"type": "observation", "data": {"observation": content, "reward": reward, "done": done}}


@asynccontextmanager
async def openenv_server() -> AsyncIterator[str]:
    """The address of a server that runs on this loop."""
    app = web.Application()
    app.router.add_get("/ws", serve_session)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0][:2]
    try:
        yield f"http://{host}:{port}"
    finally:
        await runner.cleanup()
