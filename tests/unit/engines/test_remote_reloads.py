"""Weights that a remote server loads while requests are under way, or cannot load."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from aiohttp import web
from support.remote_engine import a_request, a_server, an_engine, first_choice, generate_route, swap

from producers.engines.ports import VersionSpan
from rollog.kernel.errors import EngineDied, EngineError, WeightsError
from schemas import FinishReason

if TYPE_CHECKING:
    from pathlib import Path


def test_an_answer_that_comes_while_weights_are_loaded_waits_until_they_are_ours(model: Path) -> None:
    async def scenario() -> None:
        async with a_server() as server, an_engine(server, model) as engine:
            may_answer, answered = asyncio.Event(), asyncio.Event()

            async def late(request: web.Request) -> web.Response:
                body = await request.json()
                await may_answer.wait()
                answered.set()
                return web.json_response(server.answer(body))

            async def overtaken(request: web.Request) -> web.Response:
                body = await request.json()
                if body["method"] == "rollog_loaded":
                    may_answer.set()
                    await answered.wait()
                    return web.json_response({"results": [{"mark": "rollog-other/1/1"}]})
                return web.json_response({"results": [{"mark": body["args"][2]}]})

            server.instead = {generate_route: late, "/collective_rpc": overtaken}
            waits = asyncio.create_task(engine.generate(a_request()))
            await asyncio.sleep(0)
            await engine.pause()
            with pytest.raises(EngineDied, match="somebody else loaded weights"):
                await engine.load_weights(model / "v.safetensors", 1)
            with pytest.raises(EngineDied, match="somebody else loaded weights"):
                await waits

    asyncio.run(scenario())


def test_of_an_aborted_request_no_token_of_a_later_load_is_returned(model: Path) -> None:
    async def scenario() -> None:
        async with a_server() as server, an_engine(server, model) as engine:
            may_answer, marks = asyncio.Event(), [server.mark]

            async def late(request: web.Request) -> web.Response:
                answer = server.answer(await request.json())
                await may_answer.wait()
                first_choice(answer)["weight_versions"] = [
                    {"version": marks[0], "start": 0, "end": 1},
                    {"version": marks[1], "start": 1, "end": 3},
                ]
                return web.json_response(answer)

            server.instead[generate_route] = late
            request = asyncio.create_task(engine.generate(a_request()))
            await asyncio.sleep(0)
            abort = asyncio.create_task(engine.abort("r"))
            await server.aborted.wait()
            await swap(engine, model, 1)
            marks.append(server.mark)
            may_answer.set()
            generation = await request
            await abort
            assert generation.token_ids.tolist() == [5]
            assert generation.finish_reason is FinishReason.ABORT
            assert generation.spans == (VersionSpan(version=0, start=0, end=1),)

    asyncio.run(scenario())


def test_an_abort_that_overtakes_its_request_is_repeated(model: Path) -> None:
    async def scenario() -> None:
        async with a_server() as server, an_engine(server, model) as engine:
            num_aborts = 0
            ended = asyncio.Event()

            async def when_aborted(request: web.Request) -> web.Response:
                body = await request.json()
                await ended.wait()
                return web.json_response(server.answer(body, "abort"))

            async def third_time(_: web.Request) -> web.Response:
                nonlocal num_aborts
                num_aborts += 1
                if num_aborts == 3:
                    ended.set()
                return web.Response()

            server.instead = {generate_route: when_aborted, "/inference/v1/abort_requests": third_time}
            request = asyncio.create_task(engine.generate(a_request()))
            await asyncio.sleep(0)
            await engine.abort("r")
            assert num_aborts == 3
            assert (await request).finish_reason is FinishReason.ABORT

    asyncio.run(scenario())


def test_weights_that_the_server_refuses_leave_nothing_served_and_no_mark_of_ours(model: Path) -> None:
    async def scenario() -> None:
        async with a_server() as server, an_engine(server, model) as engine:
            server.refusal = "WeightsError: other bytes"
            await engine.pause()
            with pytest.raises(
                WeightsError, match=r"could not load v\.safetensors: WeightsError: other bytes"
            ):
                await engine.load_weights(model / "v.safetensors", 1)
            assert server.mark.endswith("/unfit")
            with pytest.raises(EngineError, match="no weights"):
                await engine.generate(a_request())
            server.refusal = None
            await swap(engine, model, 1)
            assert (await engine.generate(a_request())).spans == (VersionSpan(version=1, start=0, end=3),)

    asyncio.run(scenario())


def test_tokens_made_with_half_loaded_weights_are_never_credited(model: Path) -> None:
    async def scenario() -> None:
        async with a_server() as server, an_engine(server, model) as engine:
            server.mark = server.mark.rpartition("/")[0].rpartition("/")[0] + "/unfit"
            with pytest.raises(EngineDied, match="/unfit', which this worker did not load"):
                await engine.generate(a_request())

    asyncio.run(scenario())
