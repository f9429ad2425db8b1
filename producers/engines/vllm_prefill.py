"""Log-probabilities of recorded tokens from vLLM, which reads each sequence as a prompt and samples nothing of it.

What a verification asks (`consumers.verification.ports.Scorer`). vLLM gives log-probabilities of a prompt before any
sampling parameter acts: at temperature 1.
"""

from __future__ import annotations

import asyncio
import os
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from producers.engines.choice import make_engine
from producers.engines.vllm import VllmEngine

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from rollog.settings.generation import RolloutConfig
    from rollog.settings.run import ModelConfig
    from schemas import Float32Array, Int32Array


class RecordedTokens(Protocol):
    """A prompt and the response tokens behind it."""

    @property
    def prompt_token_ids(self) -> Int32Array:
        """The prompt."""
        ...

    @property
    def token_ids(self) -> Int32Array:
        """Response tokens, from the first."""
        ...


class VllmPrefill:
    """A started vLLM engine, used from one thread that runs its loop."""

    def __init__(self, engine: VllmEngine, runner: asyncio.Runner) -> None:
        self._engine = engine
        self._runner = runner
        self._num_loads = 0
        self._num_requests = 0

    def load(self, path: Path) -> None:
        """Take the weights of a file. Raises WeightsError."""
        self._num_loads += 1
        self._runner.run(self._load(path))

    def logprobs(self, pieces: Sequence[RecordedTokens]) -> list[Float32Array]:
        """One entry per response token of each sequence. Raises EngineError."""
        return self._runner.run(self._all(pieces))

    async def _load(self, path: Path) -> None:
        # Paused as for a reload, so that nothing computed under the weights before is kept.
        await self._engine.pause()
        await self._engine.load_weights(path, self._num_loads)
        await self._engine.resume()

    async def _all(self, pieces: Sequence[RecordedTokens]) -> list[Float32Array]:
        return await asyncio.gather(*(self._one(piece) for piece in pieces))

    async def _one(self, piece: RecordedTokens) -> Float32Array:
        self._num_requests += 1
        sequence = [*piece.prompt_token_ids.tolist(), *piece.token_ids.tolist()]
        values = await self._engine.prompt_logprobs(sequence, f"prefill-{self._num_requests}")
        return values[len(sequence) - len(piece.token_ids) :]


@contextmanager
def vllm_prefill(
    model: ModelConfig, rollout: RolloutConfig, *, adapter_rank: int = 0
) -> Iterator[VllmPrefill]:
    """VLLM for as long as the block lasts, with room for the token that it always samples behind a prompt.

    That token is never computed further, so a sequence may fill the model's whole context.
    """
    os.environ["VLLM_ALLOW_LONG_MAX_MODEL_LEN"] = "1"
    engine = make_engine(
        model.model_copy(update={"max_context_tokens": model.max_context_tokens + 1}),
        rollout.model_copy(update={"engine": "vllm"}),
        seed=0,
        adapter_rank=adapter_rank,
    )
    assert isinstance(engine, VllmEngine)
    with asyncio.Runner() as runner:
        try:
            runner.run(engine.start())
            yield VllmPrefill(engine, runner)
        finally:
            runner.run(engine.close())
