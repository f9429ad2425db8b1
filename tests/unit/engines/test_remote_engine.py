"""The remote engine against a server that answers wrongly, late or not at all."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
from aiohttp import web
from support.pretended_server import PretendedServer, pretended_server

from producers.engines.ports import GenerationRequest, VersionSpan
from producers.engines.remote import RemoteEngine
from producers.engines.stop_texts import StopTexts
from rollog.kernel.errors import ConfigError, EngineDied, EngineError, WeightsError
from schemas import FinishReason, SamplingParameters

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

generate = "/inference/v1/generate"
config = {"model_type": "qwen2", "vocab_size": 40, "hidden_size": 64, "eos_token_id": 1}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "v.safetensors").write_bytes(b"weights")
    return tmp_path


@asynccontextmanager
async def a_server(**changes: Any) -> AsyncIterator[PretendedServer]:
    async with pretended_server(config | {"dtype": "float32"}) as server:
        for name, value in changes.items():
            setattr(server, name, value)
        yield server


@asynccontextmanager
async def an_engine(
    server: PretendedServer,
    model: Path,
    *,
    version: int | None = 0,
    watch_seconds: float = 60.0,
    **options: Any,
) -> AsyncIterator[RemoteEngine]:
    """An engine that has started and serves `version`."""
    engine = RemoteEngine(
        server.settings(**options), str(model), max_context_tokens=64, watch_seconds=watch_seconds
    )
    try:
        await engine.start()
        if version is not None:
            await swap(engine, model, version)
        yield engine
    finally:
        await engine.close()


async def swap(engine: RemoteEngine, model: Path, version: int) -> None:
    await engine.pause()
    await engine.load_weights(model / "v.safetensors", version)
    await engine.resume()


def a_request(
    *,
    request_id: str = "r",
    prompt: tuple[int, ...] = (2, 3),
    max_tokens: int = 8,
    stop: StopTexts | None = None,
) -> GenerationRequest:
    return GenerationRequest(
        request_id=request_id,
        prompt_token_ids=prompt,
        sampling=SamplingParameters(temperature=1.0, max_tokens=max_tokens),
        seed=0,
        stop=stop,
    )


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


def first(answer: dict[str, Any]) -> dict[str, Any]:
    choice: dict[str, Any] = answer["choices"][0]
    return choice


def set_logprob(answer: dict[str, Any], value: object) -> None:
    first(answer)["logprobs"]["content"][0]["logprob"] = value


wrong_answers: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "other prompt": (lambda answer: answer.update(prompt_token_ids=[2, 4]), "another prompt"),
    "no prompt": (lambda answer: answer.pop("prompt_token_ids"), "another prompt"),
    "id out of range": (
        lambda answer: first(answer).update(token_ids=[5, 40, 7]),
        "token 40; the model has tokens 0",
    ),
    "negative id": (lambda answer: first(answer).update(token_ids=[-1, 6, 7]), "token -1"),
    "id that is true": (lambda answer: first(answer).update(token_ids=[True, 6, 7]), "token True"),
    "logprob of another token": (
        lambda answer: first(answer).update(token_ids=[5, 6, 8]),
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
    "no logprobs": (lambda answer: first(answer).update(logprobs=None), "without log-probabilities"),
    "too few logprobs": (
        lambda answer: first(answer)["logprobs"]["content"].pop(),
        "2 log-probabilities for 3",
    ),
    "no version": (lambda answer: first(answer).update(weight_versions=None), "does not say which weights"),
    "a gap": (lambda answer: first(answer)["weight_versions"][0].update(start=1), r"\[1, 3\] for 3 tokens"),
    "too short": (lambda answer: first(answer)["weight_versions"][0].update(end=2), r"\[0, 2\] for 3 tokens"),
    "half a token": (
        lambda answer: first(answer)["weight_versions"][0].update(start=0.0),
        r"\[0.0, 3\] for 3 tokens",
    ),
    "no end": (lambda answer: first(answer).update(finish_reason=None), "before the end of the response"),
    "unknown end": (
        lambda answer: first(answer).update(finish_reason="error"),
        "ended the response with 'error'",
    ),
    "two responses": (lambda answer: answer["choices"].append(first(answer)), "exactly one response"),
    "no form": (lambda answer: first(answer).update(logprobs=[1, 2, 3]), "a form that vLLM"),
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
            server.instead[generate] = lambda request: more(server, request)
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


def answering(status: int, text: str) -> Any:
    async def handler(_: web.Request) -> web.Response:
        return web.Response(status=status, text=text)

    return handler


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
            server.instead[generate] = answering(status, text)
            with pytest.raises(EngineError, match=message) as raised:
                await engine.generate(a_request())
            assert not isinstance(raised.value, EngineDied)
            del server.instead[generate]
            await engine.generate(a_request())

    asyncio.run(scenario())


@pytest.mark.parametrize("status", [302, 401, 404, 429, 502, 503])
def test_a_server_that_takes_no_requests_any_more_ends_the_engine(model: Path, status: int) -> None:
    async def scenario() -> None:
        async with a_server() as server, an_engine(server, model) as engine:
            server.instead[generate] = answering(status, "no")
            with pytest.raises(EngineDied, match=f"answered {status}"):
                await engine.generate(a_request())
            del server.instead[generate]
            with pytest.raises(EngineDied, match=f"answered {status}"):
                await engine.generate(a_request())

    asyncio.run(scenario())


def test_an_error_of_a_server_that_is_not_healthy_ends_the_engine(model: Path) -> None:
    async def scenario() -> None:
        async with a_server() as server, an_engine(server, model) as engine:
            server.instead = {generate: answering(500, "dead"), "/health": answering(503, "")}
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
                generate: answering(200, 'data: {"error": {"message": "no room"}}\n\ndata: [DONE]\n\n'),
                "/health": answering(health, ""),
            }
            with pytest.raises(EngineError, match=r"ended its answer: .*no room") as raised:
                await engine.generate(a_request(stop=StopTexts(("x",), lambda _: "")))
            assert isinstance(raised.value, EngineDied) is (error is EngineDied)

    asyncio.run(scenario())


def test_a_server_that_aborts_on_its_own_ends_the_engine(model: Path) -> None:
    async def scenario() -> None:
        async with a_server() as server, an_engine(server, model) as engine:
            server.change = lambda answer: first(answer).update(finish_reason="abort")
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

            server.instead[generate] = reset
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
                first(piece).update(finish_reason=None, weight_versions=None)
                await response.write(b"data: " + json.dumps(piece).encode() + b"\n\n")
                return response

            server.instead[generate] = half
            with pytest.raises(EngineDied, match="before it was complete"):
                await engine.generate(a_request(stop=StopTexts(("x",), lambda _: "")))

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
                    choice = dict(first(whole))
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

            server.instead[generate] = one_by_one
            stop = StopTexts(("6",), lambda ids: "".join(map(str, ids)))
            generation = await engine.generate(a_request(prompt=prompt, stop=stop))
            assert generation.token_ids.tolist() == [5, 6]
            assert generation.finish_reason is FinishReason.STOP
            assert generation.spans == (VersionSpan(version=0, start=0, end=2),)
            assert server.aborted.is_set()

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
            server.instead[generate] = never
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
            server.instead = {generate: never, "/weight_info": never}
            with pytest.raises(EngineDied, match=r"\(/weight_info\) did not answer in 0.5 s"):
                await engine.generate(a_request())

    asyncio.run(scenario())


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

            server.instead = {generate: late, "/collective_rpc": overtaken}
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
                first(answer)["weight_versions"] = [
                    {"version": marks[0], "start": 0, "end": 1},
                    {"version": marks[1], "start": 1, "end": 3},
                ]
                return web.json_response(answer)

            server.instead[generate] = late
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

            server.instead = {generate: when_aborted, "/inference/v1/abort_requests": third_time}
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


start_mistakes: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "wrong key": ({"key": "another"}, ConfigError, "answered 401.*it was asked with another key"),
    "no server of vLLM": (
        {"instead": {"/v1/models": answering(404, "")}},
        ConfigError,
        "or is no vLLM server",
    ),
    "no update route": (
        {"instead": {"/collective_rpc": answering(404, "Not Found")}},
        ConfigError,
        "lacks a route to update weights .VLLM_SERVER_DEV_MODE=1.",
    ),
    "no extension": (
        {"instead": {"/collective_rpc": answering(500, "no")}},
        ConfigError,
        "--worker-extension-cls",
    ),
    "no token route": (
        {"instead": {generate: answering(403, "Scale-out endpoints are disabled")}},
        ConfigError,
        "--tokens-only",
    ),
    "no logprobs": (
        {"change": lambda answer: first(answer).update(logprobs=None)},
        ConfigError,
        "without log-prob",
    ),
    "another model": (
        {"model": config | {"hidden_size": 32}},
        ConfigError,
        "hidden_size is 32 there and 64 here",
    ),
    "no size": (
        {"model": {name: value for name, value in config.items() if name != "vocab_size"}},
        ConfigError,
        "is no vLLM server of version 0.32 that works for a run .KeyError.'vocab_size'",
    ),
    "another type": ({"model": config | {"dtype": "bfloat16"}}, ConfigError, "dtype is 'bfloat16' there"),
    "short context": ({"max_context_tokens": 63}, ConfigError, "--max-model-len 64"),
    "raw logprobs": ({"logprobs_mode": "raw_logprobs"}, ConfigError, "--logprobs-mode processed_logprobs"),
}


@pytest.mark.parametrize("name", start_mistakes)
def test_a_server_that_cannot_do_it_is_refused_at_the_start_with_the_remedy(model: Path, name: str) -> None:
    changes, error, message = start_mistakes[name]

    async def scenario() -> None:
        async with a_server(**changes) as server:
            with pytest.raises(error, match=message) as raised:
                async with an_engine(server, model, key="sesame"):
                    pass
            assert "sesame" not in str(raised.value)

    asyncio.run(scenario())


def test_where_nothing_listens_the_start_says_so(model: Path) -> None:
    async def scenario() -> None:
        async with a_server() as server:
            pass
        with pytest.raises(EngineError, match=r"cannot be reached.*correct rollout\.server_address"):
            async with an_engine(server, model):
                pass

    asyncio.run(scenario())


def test_a_server_that_is_still_starting_is_waited_for(model: Path) -> None:
    async def scenario() -> None:
        async with a_server() as server:

            async def at_first_not(_: web.Request) -> web.Response:
                del server.instead["/health"]
                return web.Response(status=503)

            server.instead["/health"] = at_first_not
            async with an_engine(server, model, start_seconds=60.0):
                assert [path for path, _ in server.asked].count("/health") == 2

    asyncio.run(asyncio.wait_for(scenario(), 30))


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

            server.instead[generate] = until_gone
            request = asyncio.create_task(engine.generate(a_request()))
            await arrived.wait()
            request.cancel()
            await asyncio.wait([request])
            await engine.close()
            assert request.cancelled()

    asyncio.run(scenario())
