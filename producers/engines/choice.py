"""The engine that the configuration names."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rollog.kernel.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

    from producers.engines.ports import Engine
    from rollog.settings.generation import RolloutConfig
    from rollog.settings.run import ModelConfig


def make_engine(model: ModelConfig, rollout: RolloutConfig, seed: int, home: Path | None = None) -> Engine:
    """A new engine, not started; below `home` lies what lives no longer than it.

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
        from producers.engines.transformers_engine import TransformersEngine  # noqa: PLC0415

        return TransformersEngine(
            model.path,
            dtype=model.dtype,
            max_context_tokens=model.max_context_tokens,
            capacity=rollout.capacity,
            num_threads=rollout.num_threads,
        )
    from producers.engines.vllm import VllmEngine  # noqa: PLC0415

    return VllmEngine(
        model.path,
        dtype=model.dtype,
        max_context_tokens=model.max_context_tokens,
        capacity=rollout.capacity,
        kv_cache_bytes=rollout.kv_cache_bytes,
        num_threads=rollout.num_threads,
        seed=seed,
        engine_args=rollout.engine_args,
        home=home,
    )
