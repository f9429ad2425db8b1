"""A remote server that ends, hangs or refuses: whether a request alone fails, or the engine."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

import pytest
from aiohttp import web
from support.remote_engine import a_request, a_server, an_engine, answering, first_choice, generate_route

from producers.engines.stop_texts import StopTexts
from rollog.kernel.errors import EngineDied, EngineError

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("status", [302, 401, 404, 429, 502, 503])
def test_a_server_that_takes_no_requests_any_more_ends_the_engine(model: Path, status: int) -> None:
    async def scenario() -> None:
        async with a_server() as server, an_engine(server, model) as engine:
            server.instead[generate_route] = answering(status, "no")
            with pytest.raises(EngineDied, match=f"answered {status}"):
                await engine.generate(a_request())
            del server.instead[generate_route]
            with pytest.raises(EngineDied, match=f"answered {status}"):
                await engine.generate(a_request())

    asyncio.run(scenario())


def test_an_error_of_a_server_that_is_not_healthy_ends_the_engine(model: Path) -> None:
    async def scenario() -> None:
        async with a_server() as server, an_engine(server, model) as engine:
            server.instead = {generate_route: answering(500, "dead"), "/health": answering(503, "")}
            with pytest.raises(EngineDied, match="answered 500"):
                await engine.generate(a_request())

    asyncio.run(scenario())


@pytest.mark.parametrize(("health", "error"), [(200, EngineError), (503, EngineDied)])
def test_an_error_in_a_streamed_answer_counts_as_one_before_it(
    model: Path, health: int, error: type[EngineError]
) -> None:
    async def scenario() -> None:
        async with a_server() as server, an_engine(server, model) as engine:
            server.instead = {
                generate_route: answering(200, 'data: {"error": {"message": "no room"}}\n\ndata: [DONE]\n\n'),
                "/health": answering(health, ""),
            }
            with pytest.raises(EngineError, match=r"ended its answer: .*no room") as raised:
                await engine.generate(a_request(stop=StopTexts(("x",), lambda _: "")))
            assert isinstance(raised.value, EngineDied) is (error is EngineDied)

    asyncio.run(scenario())


def test_a_server_that_aborts_on_its_own_ends_the_engine(model: Path) -> None:
    async def scenario() -> None:
        async with a_server() as server, an_engine(server, model) as engine:
            server.change = lambda answer: first_choice(answer).update(finish_reason="abort")
            with pytest.raises(EngineDied, match="a request that nobody aborted"):
                await engine.generate(a_request())

    asyncio.run(scenario())


def test_a_connection_that_is_reset_in_mid_generation_ends_every_request(model: Path) -> None:
    async def scenario() -> None:
        async with a_server() as server, an_engine(server, model) as engine:
            arrived = asyncio.Event()

            async def reset(request: web.Request) -> web.StreamResponse:
                if (await request.json())["request_id"].endswith("-waits"):
                    arrived.set()
                    await asyncio.Event().wait()
                await arrived.wait()
                assert request.transport is not None
                request.transport.abort()
                return web.Response()

            server.instead[generate_route] = reset
            waits = asyncio.create_task(engine.generate(a_request(request_id="waits")))
            with pytest.raises(EngineDied, match="cannot be reached"):
                await engine.generate(a_request())
            with pytest.raises(EngineDied, match="cannot be reached"):
                await waits

    asyncio.run(scenario())


def test_a_streamed_answer_that_breaks_off_ends_the_engine(model: Path) -> None:
    async def scenario() -> None:
        async with a_server() as server, an_engine(server, model) as engine:

            async def half(request: web.Request) -> web.StreamResponse:
                response = web.StreamResponse()
                await response.prepare(request)
                piece = server.answer(await request.json())
                first_choice(piece).update(finish_reason=None, weight_versions=None)
                await response.write(b"data: " + json.dumps(piece).encode() + b"\n\n")
                return response

            server.instead[generate_route] = half
            with pytest.raises(EngineDied, match="before it was complete"):
                await engine.generate(a_request(stop=StopTexts(("x",), lambda _: "")))

    asyncio.run(scenario())


def test_a_server_that_was_started_again_is_noticed_by_the_mark_of_its_tokens(model: Path) -> None:
    async def scenario() -> None:
        async with a_server() as server, an_engine(server, model) as engine:
            server.mark, server.loaded = "default", ""
            with pytest.raises(EngineDied, match="'default', which this worker did not load"):
                await engine.generate(a_request())
            with pytest.raises(EngineDied):
                await engine.pause()

    asyncio.run(scenario())


def test_a_server_that_was_started_again_is_noticed_while_a_request_waits(model: Path) -> None:
    async def scenario() -> None:
        async with a_server() as server, an_engine(server, model, watch_seconds=0.01) as engine:
            server.instead[generate_route] = never
            waits = asyncio.create_task(engine.generate(a_request()))
            await asyncio.sleep(0)
            server.mark = "default"
            with pytest.raises(EngineDied, match="'default' and not 'rollog-"):
                await waits
            with pytest.raises(EngineDied, match="'default' and not 'rollog-"):
                await engine.generate(a_request())

    asyncio.run(scenario())


async def never(_: web.Request) -> web.StreamResponse:
    await asyncio.Event().wait()
    raise AssertionError


def test_a_server_that_does_not_answer_in_time_ends_the_engine(model: Path) -> None:
    async def scenario() -> None:
        async with (
            a_server() as server,
            an_engine(server, model, watch_seconds=0.01, call_seconds=0.5) as engine,
        ):
            server.instead = {generate_route: never, "/weight_info": never}
            with pytest.raises(EngineDied, match=r"\(/weight_info\) did not answer in 0.5 s"):
                await engine.generate(a_request())

    asyncio.run(scenario())
