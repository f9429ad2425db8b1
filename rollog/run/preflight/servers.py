"""Whether the inference server that the workers use answers, and has the model and the routes that a run needs."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from producers.engines.model_files import read_json
from producers.engines.remote_calls import ServerCalls, inference_server
from producers.engines.remote_state import check_state, server_state
from rollog.kernel.errors import ConfigError, EngineError
from rollog.run.finding import Finding

if TYPE_CHECKING:
    from producers.engines.remote_calls import InferenceServer
    from producers.engines.remote_state import ServerState
    from rollog.settings.settings import Settings

_what = "inference server"


def inference(settings: Settings) -> list[Finding]:
    """What the server says of itself. Raises ConfigError for one that cannot serve this run."""
    server = inference_server(settings.rollout)
    try:
        state = asyncio.run(_state(server))
    except EngineError as error:
        raise ConfigError(f"{error}; start the server, or correct rollout.server_address") from error
    if settings.model.path is not None:
        check_state(
            state,
            server,
            config=read_json(settings.model.path, "config.json"),
            dtype=settings.model.dtype,
            max_context_tokens=settings.model.max_context_tokens,
        )
    found = (
        f"vLLM {state.version} at {server.address} with a {state.model.get('model_type')} for "
        f"{state.max_context_tokens} tokens, weights {state.mark!r}"
    )
    remedies = _remedies(server, state)
    if not remedies:
        return [Finding(what=_what, found=found)]
    return [Finding(what=_what, found=found, remedy=remedy, is_needed=False) for remedy in remedies]


async def _state(server: InferenceServer) -> ServerState:
    calls = ServerCalls(server)
    try:
        return await server_state(calls)
    finally:
        await calls.close()


def _remedies(server: InferenceServer, state: ServerState) -> list[str]:
    remedies = []
    if state.is_open or server.key is None:
        remedies.append(
            "whoever reaches it can replace its weights and call its workers without a key: start it with --middleware "
            "producers.engines.vllm_guard.Guard and VLLM_API_KEY"
        )
    if server.key is not None and server.is_in_clear:
        remedies.append("the key goes there in clear: give the server a certificate and use https")
    return remedies
