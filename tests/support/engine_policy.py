"""Calls of sessions on one engine, drawn as the run says."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from producers.engines.ports import GenerationRequest
from producers.engines.stop_texts import StopTexts
from rollog.rules.seeds import derived_seed

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from producers.engines.ports import Engine, Generation
    from schemas import SamplingParameters


class EnginePolicy:
    """`PolicyCalls` of an engine. The seed of a call is a hash of the session's seed and the call's number."""

    def __init__(
        self,
        engine: Engine,
        sampling: SamplingParameters,
        *,
        seed: int,
        text_of: Callable[[Sequence[int]], str],
    ) -> None:
        self._engine = engine
        self._sampling = sampling
        self._seed = seed
        self._text_of = text_of
        self._num_calls: dict[str, int] = {}

    async def generate(
        self, session: str, input_ids: Sequence[int], max_tokens: int, stop: Sequence[str]
    ) -> Generation:
        """One turn. Raises EngineError."""
        number = self._num_calls.get(session, 0)
        self._num_calls[session] = number + 1
        texts = tuple(dict.fromkeys([*self._sampling.stop, *stop]))
        request = GenerationRequest(
            request_id=f"{session}/{number}",
            prompt_token_ids=input_ids,
            sampling=replace(self._sampling, max_tokens=max_tokens, stop=texts),
            seed=derived_seed(self._seed, session, number),
            stop=StopTexts(texts, self._text_of) if texts else None,
        )
        return await self._engine.generate(request)

    def forget(self, session: str) -> None:
        """The session has ended."""
        self._num_calls.pop(session, None)
