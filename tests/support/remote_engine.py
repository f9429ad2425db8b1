"""A remote engine that asks a pretended server."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from aiohttp import web

from producers.engines.ports import GenerationRequest
from producers.engines.remote import RemoteEngine
from schemas import SamplingParameters
from support.pretended_server import PretendedServer, pretended_server

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from producers.engines.stop_texts import StopTexts


generate_route = "/inference/v1/generate"
model_config = {"model_type": "qwen2", "vocab_size": 40, "hidden_size": 64, "eos_token_id": 1}


@asynccontextmanager
async def a_server(**changes: Any) -> AsyncIterator[PretendedServer]:
    async with pretended_server(model_config | {"dtype": "float32"}) as server:
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


def first_choice(answer: dict[str, Any]) -> dict[str, Any]:
    choice: dict[str, Any] = answer["choices"][0]
    return choice


def set_logprob(answer: dict[str, Any], value: object) -> None:
    first_choice(answer)["logprobs"]["content"][0]["logprob"] = value


def answering(status: int, text: str) -> Any:
    async def handler(_: web.Request) -> web.Response:
        return web.Response(status=status, text=text)

    return handler
