"""What a remote server answers: what is taken of it, and what fails its request."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest
from aiohttp import web
from support.remote_engine import (
    a_request,
    a_server,
    an_engine,
    answering,
    first_choice,
    generate_route,
    set_logprob,
)

from producers.engines.ports import VersionSpan
from producers.engines.stop_texts import StopTexts
from rollog.kernel.errors import EngineDied, EngineError
from schemas import FinishReason

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from support.pretended_server import PretendedServer


def test_tokens_logprobs_and_version_come_as_the_server_gave_them(model: Path) -> None:
    async def scenario() -> None:
        async with a_server() as server, an_engine(server, model, version=7) as engine:
            server.change = lambda answer: set_logprob(answer, -2.205507755279541)
            generation = await engine.generate(a_request())
            assert generation.token_ids.tolist() == [5, 6, 7]
            assert generation.behaviour_logprobs.tolist() == [-2.205507755279541, -0.5, -0.5]
            assert generation.spans == (VersionSpan(version=7, start=0, end=3),)
            assert generation.finish_reason is FinishReason.LENGTH
            assert engine.engine_version == "0.32.0"

    asyncio.run(scenario())


wrong_answers: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "other prompt": (lambda answer: answer.update(prompt_token_ids=[2, 4]), "another prompt"),
    "no prompt": (lambda answer: answer.pop("prompt_token_ids"), "another prompt"),
    "id out of range": (
        lambda answer: first_choice(answer).update(token_ids=[5, 40, 7]),
        "token 40; the model has tokens 0",
    ),
    "negative id": (lambda answer: first_choice(answer).update(token_ids=[-1, 6, 7]), "token -1"),
    "id that is true": (lambda answer: first_choice(answer).update(token_ids=[True, 6, 7]), "token True"),
    "logprob of another token": (
        lambda answer: first_choice(answer).update(token_ids=[5, 6, 8]),
        "log-probability of 7",
    ),
    "NaN": (lambda answer: set_logprob(answer, float("nan")), "no log-probability of token 5"),
    "what vLLM writes for NaN": (
        lambda answer: set_logprob(answer, -9999.0),
        "no log-probability of token 5",
    ),
    "text": (lambda answer: set_logprob(answer, "-0.5"), "no log-probability of token 5"),
    "true": (lambda answer: set_logprob(answer, True), "no log-probability of token 5"),
    "more than certain": (lambda answer: set_logprob(answer, 0.5), "no log-probability of token 5"),
    "no logprobs": (lambda answer: first_choice(answer).update(logprobs=None), "without log-probabilities"),
    "too few logprobs": (
        lambda answer: first_choice(answer)["logprobs"]["content"].pop(),
        "2 log-probabilities for 3",
    ),
    "no version": (
        lambda answer: first_choice(answer).update(weight_versions=None),
        "does not say which weights",
    ),
    "a gap": (
        lambda answer: first_choice(answer)["weight_versions"][0].update(start=1),
        r"\[1, 3\] for 3 tokens",
    ),
    "too short": (
        lambda answer: first_choice(answer)["weight_versions"][0].update(end=2),
        r"\[0, 2\] for 3 tokens",
    ),
    "half a token": (
        lambda answer: first_choice(answer)["weight_versions"][0].update(start=0.0),
        r"\[0.0, 3\] for 3 tokens",
    ),
    "no end": (
        lambda answer: first_choice(answer).update(finish_reason=None),
        "before the end of the response",
    ),
    "unknown end": (
        lambda answer: first_choice(answer).update(finish_reason="error"),
        "ended the response with 'error'",
    ),
    "two responses": (lambda answer: answer["choices"].append(first_choice(answer)), "exactly one response"),
    "no form": (lambda answer: first_choice(answer).update(logprobs=[1, 2, 3]), "a form that vLLM"),
}


@pytest.mark.parametrize("name", wrong_answers)
def test_an_answer_that_cannot_be_right_fails_its_request_and_the_engine_goes_on(
    model: Path, name: str
) -> None:
    change, message = wrong_answers[name]

    async def scenario() -> None:
        async with a_server() as server, an_engine(server, model) as engine:
            server.change = change
            with pytest.raises(EngineError, match=message) as raised:
                await engine.generate(a_request())
            assert not isinstance(raised.value, EngineDied)
            server.change = lambda _: None
            assert len((await engine.generate(a_request())).token_ids) == 3

    asyncio.run(scenario())


def test_more_tokens_than_were_asked_for_are_refused(model: Path) -> None:
    async def scenario() -> None:
        async with a_server() as server, an_engine(server, model) as engine:
            server.instead[generate_route] = lambda request: more(server, request)
            with pytest.raises(EngineError, match="more than 2 tokens"):
                await engine.generate(a_request(max_tokens=2))

    async def more(server: PretendedServer, request: web.Request) -> web.Response:
        body = await request.json()
        body["sampling_params"]["max_tokens"] += 1
        return web.json_response(server.answer(body))

    asyncio.run(scenario())


@pytest.mark.parametrize("prompt", [(2, 40), (-1,), (), tuple([2] * 64)])
def test_a_prompt_that_would_end_the_server_is_not_sent(model: Path, prompt: tuple[int, ...]) -> None:
    async def scenario() -> None:
        async with a_server() as server, an_engine(server, model) as engine:
            before = len(server.asked)
            with pytest.raises(EngineError, match="request r has"):
                await engine.generate(a_request(prompt=prompt))
            assert len(server.asked) == before

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("status", "text", "message"),
    [
        (200, "<html>", "answered no JSON: '<html>'"),
        (200, '{"choices": [', "answered no JSON"),
        (200, "[" * 100_000, "answered no JSON"),
        (200, "", "exactly one response"),
        (400, "too long", "answered 400: 'too long'"),
        (500, "a bad day", "answered 500: 'a bad day'"),
    ],
)
def test_a_refused_or_unreadable_answer_fails_its_request_alone(
    model: Path, status: int, text: str, message: str
) -> None:
    async def scenario() -> None:
        async with a_server() as server, an_engine(server, model) as engine:
            server.instead[generate_route] = answering(status, text)
            with pytest.raises(EngineError, match=message) as raised:
                await engine.generate(a_request())
            assert not isinstance(raised.value, EngineDied)
            del server.instead[generate_route]
            await engine.generate(a_request())

    asyncio.run(scenario())


def test_a_streamed_answer_ends_with_the_token_that_completes_a_stop_text(model: Path) -> None:
    prompt = (3,) * 20

    async def scenario() -> None:
        async with a_server(tokens=(5, 6, 7, 8)) as server, an_engine(server, model) as engine:

            async def one_by_one(request: web.Request) -> web.StreamResponse:
                response = web.StreamResponse()
                await response.prepare(request)
                whole = server.answer(await request.json(), "abort")
                for number in range(4):
                    choice = dict(first_choice(whole))
                    choice["token_ids"] = choice["token_ids"][number : number + 1]
                    choice["logprobs"] = {"content": choice["logprobs"]["content"][number : number + 1]}
                    if number < 3:
                        choice |= {"finish_reason": None, "weight_versions": None}
                    piece: dict[str, Any] = {"choices": [choice]}
                    if number == 0:
                        piece["prompt_token_ids"] = whole["prompt_token_ids"]
                    await response.write(b"data: " + json.dumps(piece).encode() + b"\n\n")
                await response.write(b"data: [DONE]\n\n")
                return response

            server.instead[generate_route] = one_by_one
            stop = StopTexts(("6",), lambda ids: "".join(map(str, ids)))
            generation = await engine.generate(a_request(prompt=prompt, stop=stop))
            assert generation.token_ids.tolist() == [5, 6]
            assert generation.finish_reason is FinishReason.STOP
            assert generation.spans == (VersionSpan(version=0, start=0, end=2),)
            assert server.aborted.is_set()

    asyncio.run(scenario())


def test_the_key_goes_with_every_request_but_the_one_that_asks_whether_it_is_needed(
    model: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> PretendedServer:
        async with a_server() as server, an_engine(server, model) as engine:
            await engine.generate(a_request())
        return server

    server = asyncio.run(scenario())
    assert [path for path, has_key in server.asked if not has_key] == ["/weight_info"]
    assert "sesame" not in caplog.text
    assert "sesame" not in repr(server.settings())


def test_closing_ends_what_the_server_is_computing(model: Path) -> None:
    async def scenario() -> None:
        async with a_server() as server, an_engine(server, model) as engine:
            arrived, gone = asyncio.Event(), asyncio.Event()

            async def until_gone(_: web.Request) -> web.StreamResponse:
                arrived.set()
                try:
                    await asyncio.Event().wait()
                finally:
                    gone.set()
                raise AssertionError

            server.instead[generate_route] = until_gone
            request = asyncio.create_task(engine.generate(a_request()))
            await arrived.wait()
            request.cancel()
            await asyncio.wait([request])
            await engine.close()
            assert request.cancelled()

    asyncio.run(scenario())
