"""The engine that the configuration names."""

from __future__ import annotations

from typing import TYPE_CHECKING

from producers.engines.kv_cache import KvCache, kv_cache
from producers.engines.model_files import read_json
from producers.engines.vllm import installed_vllm
from rollog.kernel.errors import ConfigError
from rollog.kernel.large_imports import large_imports
from rollog.kernel.logs import get_logger
from rollog.kernel.machine import free_memory_bytes, num_processors

if TYPE_CHECKING:
    from pathlib import Path

    from producers.engines.ports import Engine
    from rollog.settings.generation import RolloutConfig
    from rollog.settings.run import ModelConfig

_log = get_logger("rollout")


def make_engine(
    model: ModelConfig,
    rollout: RolloutConfig,
    seed: int,
    home: Path | None = None,
    *,
    adapter_rank: int = 0,
) -> Engine:
    """A new engine, not started; below `home` lies what lives no longer than it.

    `adapter_rank` is that of the low-rank adapters that the run's versions hold apart, 0 where there are none.

    Heavy libraries are imported only for the engine that needs them.

    Raises ConfigError when the model is missing or the engine does not take `rollout.engine_args`.
    """
    if rollout.engine == "simulated":
        from producers.engines.simulated import SimulatedEngine  # noqa: PLC0415

        rate = float(rollout.engine_args.get("tokens_per_second", 1000.0))
        return SimulatedEngine(seed=seed, tokens_per_second=rate, max_context_tokens=model.max_context_tokens)
    if model.path is None:
        raise ConfigError("model.path is missing; name a model directory or a Hugging Face model")
    if rollout.engine == "transformers":
        with large_imports():
            from producers.engines.transformers_engine import TransformersEngine  # noqa: PLC0415

        return TransformersEngine(
            model.path,
            dtype=model.dtype,
            max_context_tokens=model.max_context_tokens,
            capacity=rollout.capacity,
            num_threads=engine_threads(rollout),
        )
    if rollout.engine == "remote":
        from producers.engines.remote import RemoteEngine  # noqa: PLC0415
        from producers.engines.remote_calls import inference_server  # noqa: PLC0415

        return RemoteEngine(
            inference_server(rollout),
            model.path,
            dtype=model.dtype,
            max_context_tokens=model.max_context_tokens,
        )
    from producers.engines.vllm import VllmEngine  # noqa: PLC0415  # heavy

    return VllmEngine(
        model.path,
        dtype=model.dtype,
        max_context_tokens=model.max_context_tokens,
        capacity=rollout.capacity,
        kv_cache_bytes=_kv_cache_bytes(model, rollout),
        gpu_memory_share=rollout.gpu_memory_share,
        num_threads=engine_threads(rollout),
        seed=seed,
        adapter_rank=adapter_rank,
        engine_args=rollout.engine_args,
        home=home,
    )


def engine_threads(rollout: RolloutConfig) -> int:
    """CPU threads of one engine: those of the settings, else half of the processors."""
    return rollout.num_threads or max(1, num_processors() // 2)


def kv_cache_of(model: ModelConfig, rollout: RolloutConfig) -> KvCache | None:
    """The attention state that vLLM gets on a CPU; None on a GPU, where it takes what is free there."""
    _, on_cpu = installed_vllm()
    if not on_cpu or model.path is None:
        return None
    return kv_cache(
        read_json(model.path, "config.json"),
        dtype=model.dtype,
        max_context_tokens=model.max_context_tokens,
        capacity=rollout.capacity,
        wanted_bytes=rollout.kv_cache_bytes,
        free_bytes=free_memory_bytes(),
    )


def _kv_cache_bytes(model: ModelConfig, rollout: RolloutConfig) -> int | None:
    cache = kv_cache_of(model, rollout)
    if cache is None:
        return rollout.kv_cache_bytes
    say = _log.warning if cache.is_short else _log.info
    say(str(cache))
    return cache.num_bytes
