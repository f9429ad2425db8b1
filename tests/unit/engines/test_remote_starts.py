"""A remote server at the start: waited for, or refused with the remedy."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from aiohttp import web
from support.remote_engine import a_server, an_engine, answering, first_choice, generate_route, model_config

from rollog.kernel.errors import ConfigError, EngineError

if TYPE_CHECKING:
    from pathlib import Path

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
        {"instead": {generate_route: answering(403, "Scale-out endpoints are disabled")}},
        ConfigError,
        "--tokens-only",
    ),
    "no logprobs": (
        {"change": lambda answer: first_choice(answer).update(logprobs=None)},
        ConfigError,
        "without log-prob",
    ),
    "another model": (
        {"model": model_config | {"hidden_size": 32}},
        ConfigError,
        "hidden_size is 32 there and 64 here",
    ),
    "no size": (
        {"model": {name: value for name, value in model_config.items() if name != "vocab_size"}},
        ConfigError,
        "is no vLLM server of version 0.32 that works for a run .KeyError.'vocab_size'",
    ),
    "another type": (
        {"model": model_config | {"dtype": "bfloat16"}},
        ConfigError,
        "dtype is 'bfloat16' there",
    ),
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
