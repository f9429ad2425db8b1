"""An engine that says what a function says, byte by byte, and is an engine in everything else."""

from __future__ import annotations

from typing import TYPE_CHECKING

from producers.engines.simulated import SimulatedEngine, _Response
from producers.rollout.prompts import ByteTokenizer
from schemas import FinishReason, int32_array

if TYPE_CHECKING:
    from collections.abc import Callable

    from producers.engines.ports import GenerationRequest


class ScriptedEngine(SimulatedEngine):
    """`agent` sees all that stands before a turn, as text of a ByteTokenizer."""

    def __init__(self, agent: Callable[[str], str], *, max_context_tokens: int = 32_768) -> None:
        super().__init__(tokens_per_second=1e6, max_context_tokens=max_context_tokens)
        self._agent = agent

    def _plan(self, request: GenerationRequest) -> _Response:
        said = self._agent(ByteTokenizer().decode(request.prompt_token_ids)).encode()
        assert len(said) <= request.sampling.max_tokens
        return _Response(int32_array(list(said)), FinishReason.STOP)
