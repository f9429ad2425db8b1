"""A chat endpoint on loopback that answers as it is told to, and keeps what it was asked."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from aiohttp import web

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


@dataclass
class ChatEndpoint:
    """Gives the answers of `script` in turn, the last one again and again.

    A text is what the model says; a number is a status; None never comes; bytes are a body.
    """

    script: list[str | int | bytes | None]
    address: str = ""
    asked: list[dict[str, Any]] = field(default_factory=list)
    keys: list[str | None] = field(default_factory=list)
    at_once: int = 0
    most_at_once: int = 0
    held: asyncio.Event | None = None
    headers: dict[str, str] = field(default_factory=dict)

    async def answer(self, request: web.Request) -> web.Response:
        self.asked.append(await request.json())
        self.keys.append(request.headers.get("Authorization"))
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            if self.held is not None:
                await self.held.wait()
            return await self._response()
        finally:
            self.at_once -= 1

    async def _response(self) -> web.Response:
        say = self.script.pop(0) if len(self.script) > 1 else self.script[0]
        if say is None:
            await asyncio.Event().wait()
        if isinstance(say, int):
            return web.Response(status=say, text="not now", headers=self.headers)
        if isinstance(say, bytes):
            return web.Response(body=say)
        return web.json_response({"choices": [{"message": {"role": "assistant", "content": say}}]})


@asynccontextmanager
async def a_chat_endpoint(*script: str | int | bytes | None) -> AsyncIterator[ChatEndpoint]:
    """Serve for as long as the block lasts."""
    endpoint = ChatEndpoint(list(script))
    application = web.Application()
    application.router.add_post("/v1/chat/completions", endpoint.answer)
    runner = web.AppRunner(application, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    assert site._server is not None
    assert isinstance(site._server, asyncio.Server)
    endpoint.address = f"http://127.0.0.1:{site._server.sockets[0].getsockname()[1]}/v1"
    try:
        yield endpoint
    finally:
        await runner.cleanup()
