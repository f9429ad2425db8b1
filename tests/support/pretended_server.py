"""An HTTP server that answers as vLLM's does, with mistakes on demand: what a real server does only rarely."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from aiohttp import web

from producers.engines.remote_calls import InferenceServer

if TYPE_CHECKING:
    import ssl
    from collections.abc import AsyncIterator, Awaitable, Callable

    Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

server_key = "sesame"


@dataclass
class PretendedServer:
    """What the server is at the moment. `instead` has handlers for paths that shall answer otherwise.

    `change` is applied to each answer of a generation, `asked` has each request's path and whether it had the key.
    """

    model: dict[str, Any]
    key: str | None = server_key
    mark: str = "default"
    loaded: str = ""
    max_context_tokens: int = 128
    logprobs_mode: str = "processed_logprobs"
    tokens: tuple[int, ...] = (5, 6, 7)
    refusal: str | None = None
    instead: dict[str, Handler] = field(default_factory=dict)
    change: Callable[[dict[str, Any]], object] = lambda _: None
    asked: list[tuple[str, bool]] = field(default_factory=list)
    aborted: asyncio.Event = field(default_factory=asyncio.Event)
    address: str = ""

    def settings(self, **options: Any) -> InferenceServer:
        defaults = {"key": self.key, "call_seconds": 5.0, "load_seconds": 5.0, "start_seconds": 0.0}
        return InferenceServer(address=self.address, **(defaults | options))

    async def handle(self, request: web.Request) -> web.StreamResponse:
        has_key = request.headers.get("Authorization") == f"Bearer {self.key}"
        self.asked.append((request.path, has_key))
        if request.path in self.instead:
            return await self.instead[request.path](request)
        if self.key is not None and not has_key and request.path != "/health":
            return web.json_response({"error": "unauthorized"}, status=401)
        body = await request.json() if request.can_read_body else {}
        return web.json_response(self._answer_of(request.path, body))

    def _answer_of(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        match path:
            case "/version":
                return {"version": "0.32.0"}
            case "/weight_info":
                return {"weight_version": self.mark}
            case "/update_weight_version":
                self.mark = body["new_version"]
            case "/collective_rpc":
                return {"results": [self._worker(body["method"], body["args"])]}
            case "/inference/v1/abort_requests":
                self.aborted.set()
            case "/inference/v1/generate":
                return self.answer(body)
            case _:
                pass
        return {}

    def answer(self, body: dict[str, Any], finish_reason: str = "length") -> dict[str, Any]:
        token_ids = list(self.tokens[: body["sampling_params"]["max_tokens"]])
        content = [{"token_id": each, "logprob": -0.5, "rank": 1, "top_logprobs": []} for each in token_ids]
        answer = {
            "request_id": f"generate-tokens-{body['request_id']}",
            "prompt_token_ids": body["token_ids"],
            "choices": [
                {
                    "index": 0,
                    "finish_reason": finish_reason,
                    "token_ids": token_ids,
                    "logprobs": {"content": content},
                    "weight_versions": [{"version": self.mark, "start": 0, "end": len(token_ids)}],
                }
            ],
        }
        self.change(answer)
        return answer

    def _worker(self, method: str, args: list[str]) -> dict[str, Any]:
        if method == "rollog_describe":
            return {
                "model": self.model,
                "max_context_tokens": self.max_context_tokens,
                "logprobs_mode": self.logprobs_mode,
            }
        if method == "rollog_load":
            if self.refusal is not None:
                return {"refused": self.refusal}
            self.loaded = args[2]
        return {"mark": self.loaded}


@asynccontextmanager
async def pretended_server(
    model: dict[str, Any], *, context: ssl.SSLContext | None = None
) -> AsyncIterator[PretendedServer]:
    """A server on a free port of loopback."""
    server = PretendedServer(model)
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", server.handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context)
    await site.start()
    server.address = f"{'https' if context else 'http'}://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield server
    finally:
        await runner.cleanup()
