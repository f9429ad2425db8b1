"""What a rollout worker needs of an inference engine.

Four implementations keep these promises and pass one contract suite: vLLM, a vLLM server elsewhere, transformers and
a simulated one. All methods are called from one asyncio loop.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from producers.engines.stop_texts import StopTexts
    from schemas import FinishReason, Float32Array, Int32Array, SamplingParameters


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationRequest:
    """One response to generate. `request_id` is unique in the engine's life; `stop` ends it by its text."""

    request_id: str
    prompt_token_ids: Sequence[int]
    sampling: SamplingParameters
    seed: int
    stop: StopTexts | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionSpan:
    """Response tokens [start, end) that the engine computed under `version`."""

    version: int
    start: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """What came out: token ids and their behaviour logprobs (same length), spans in order without gaps.

    `finish_reason` ABORT marks a partial result. `token_ids` include the end-of-sequence token when one was drawn.
    """

    token_ids: Int32Array
    behaviour_logprobs: Float32Array
    spans: tuple[VersionSpan, ...]
    finish_reason: FinishReason


class Engine(Protocol):
    """Generates token by token and swaps its weights in place."""

    @property
    def name(self) -> str:
        """`vllm`, `remote`, `transformers` or `simulated`."""
        ...

    @property
    def engine_version(self) -> str:
        """Version of the library that computes."""
        ...

    @property
    def max_context_tokens(self) -> int:
        """Longest prompt plus response it accepts."""
        ...

    async def start(self) -> None:
        """Load the model's structure; no weights version is served before the first `load_weights`."""
        ...

    async def generate(self, request: GenerationRequest) -> Generation:
        """Generate one response; many calls run concurrently. Raises EngineError.

        With `request.stop` the token that completes one of its texts is the last one, with finish_reason STOP.
        """
        ...

    async def prompt_logprobs(self, token_ids: Sequence[int], request_id: str) -> Float32Array | None:
        """The log-probability of each token given those before it, at temperature 1; of the first one 0.

        None where this engine computes none. Takes one token fewer than the context has room for. Raises EngineError.
        """
        ...

    async def abort(self, request_id: str) -> None:
        """Make the matching `generate` return early with finish_reason ABORT; unknown ids are ignored.

        No token computed after a later `load_weights` is in its result.
        """
        ...

    async def pause(self) -> None:
        """Stop computing tokens; running requests stay. Returns once no token is in computation."""
        ...

    async def load_weights(self, path: Path, version: int) -> None:
        """Replace the weights by those at `path` (while paused) and label what follows `version`.

        `path` is that of a safetensors file, or of a manifest beside its shards. All were checked byte for byte.

        Raises WeightsError when names or shapes do not fit; the old weights are then not to be served.
        """
        ...

    async def resume(self) -> None:
        """Go on, with attention state recomputed under the new weights."""
        ...

    async def close(self) -> None:
        """End the engine and every process it started. A `start` under way is abandoned, not waited for."""
        ...
