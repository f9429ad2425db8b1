"""What an inference server says of itself, against what a run needs of it.

Asked when the engine starts, and by `rollog up` and `rollog doctor` before that.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from producers.engines.remote_calls import ServerCalls, ServerRefused
from rollog.kernel.errors import ConfigError, EngineError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from producers.engines.remote_calls import InferenceServer

_compared = (
    "model_type",
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "tie_word_embeddings",
)
_unauthorized, _forbidden, _not_found = 401, 403, 404
_passing = frozenset({429, 502, 503, 504})
"""What a server or a proxy before it answers while it starts."""
_how_to_start = "docs/remote-engine.md has the command that starts it"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerState:
    """What the server is. `mark` is what its weights are called, `is_open` whether it loads others without a key."""

    version: str
    model: Mapping[str, Any]
    vocabulary_size: int
    """Token ids are smaller."""
    max_context_tokens: int
    logprobs_mode: str
    mark: str
    is_open: bool


async def server_state(calls: ServerCalls) -> ServerState:
    """Ask the server what it is. Raises EngineError where nothing answers, ConfigError for what it cannot do."""
    server = calls.server
    try:
        await calls.get("/health")
        await calls.get("/v1/models")
        version = await calls.get("/version")
        found = await _described(calls)
        mark = (await calls.get("/weight_info"))["weight_version"]
        state = ServerState(
            version=str(version["version"]),
            model=found["model"],
            vocabulary_size=int(found["model"]["vocab_size"]),
            max_context_tokens=int(found["max_context_tokens"]),
            logprobs_mode=str(found["logprobs_mode"]),
            mark=str(mark),
            is_open=server.key is not None and await _is_open(calls),
        )
    except ServerRefused as error:
        raise refusal_of(error, server) from error
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(
            f"{server.address} is no vLLM server of version 0.32 that works for a run ({error!r}): {_how_to_start}"
        ) from error
    return state


def check_state(
    state: ServerState,
    server: InferenceServer,
    *,
    config: Mapping[str, Any],
    dtype: str,
    max_context_tokens: int,
) -> None:
    """Raise ConfigError where the server has another model than the run, `config` being the config.json of that."""
    wanted = {name: config[name] for name in _compared if name in config} | {"dtype": dtype}
    for name, value in wanted.items():
        if name in state.model and state.model[name] != value:
            raise ConfigError(
                f"{server.address} serves another model than model.path names: {name} is {state.model[name]!r} there "
                f"and {value!r} here; start the server with the same model, and with --dtype {dtype}"
            )
    if state.max_context_tokens < max_context_tokens:
        raise ConfigError(
            f"{server.address} takes {state.max_context_tokens} tokens, model.max_context_tokens is "
            f"{max_context_tokens}: start the server with --max-model-len {max_context_tokens}"
        )
    if state.logprobs_mode != "processed_logprobs":
        raise ConfigError(
            f"{server.address} gives log-probabilities of kind {state.logprobs_mode}, which are not those of "
            "the sampling temperature: start the server with --logprobs-mode processed_logprobs"
        )


async def _described(calls: ServerCalls) -> dict[str, Any]:
    try:
        return (await calls.on_workers("rollog_describe"))[0]
    except ServerRefused:
        raise
    except EngineError as error:
        raise ConfigError(
            f"{calls.server.address} cannot load weights ({error}): start the server with --worker-extension-cls "
            "producers.engines.vllm_worker.ServedWeightLoader, where rollog is installed"
        ) from error


async def _is_open(calls: ServerCalls) -> bool:
    """Whether anybody who reaches the server can call its update routes, as those of vLLM without a guard."""
    try:
        await calls.get("/weight_info", with_key=False)
    except ServerRefused:
        return False
    return True


def refusal_of(error: ServerRefused, server: InferenceServer) -> EngineError | ConfigError:
    """What the user is told of an answer at the start; `error` itself where it may pass."""
    if error.status in _passing:
        return error
    if error.status == _unauthorized:
        given = "with another key" if server.key is not None else "without a key"
        remedy = (
            f"it was asked {given}: name the right one with rollout.server_variable or rollout.server_file"
        )
    elif error.status in {_not_found, _forbidden}:
        remedy = (
            "it lacks a route to update weights (VLLM_SERVER_DEV_MODE=1) or to take tokens (--tokens-only), or is no "
            f"vLLM server: {_how_to_start}"
        )
    else:
        remedy = _how_to_start
    return ConfigError(f"{error}; {remedy}")
