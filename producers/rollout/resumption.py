"""One response out of one or more parts: what an aborted request has made is kept, and goes on under new weights."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from producers.engines.ports import Generation, GenerationRequest, VersionSpan
from producers.seeds import derived_seed
from schemas import FinishReason, float32_array, int32_array

if TYPE_CHECKING:
    from collections.abc import Sequence


class ResumableResponse:
    """The parts of one response, in order. A request that goes on has all earlier tokens behind its prompt."""

    def __init__(self, request: GenerationRequest, *, max_context_tokens: int) -> None:
        self._first = request
        self._max_context_tokens = max_context_tokens
        self._parts: list[Generation] = []

    @property
    def num_tokens(self) -> int:
        """Response tokens so far."""
        return sum(len(part.token_ids) for part in self._parts)

    @property
    def is_complete(self) -> bool:
        """Whether nothing is missing: it ended by itself, or there is no room for another token."""
        return self.generation.finish_reason is not FinishReason.ABORT

    @property
    def generation(self) -> Generation:
        """All parts as one, bit for bit; ABORT means that more could follow."""
        whole = joined(self._parts)
        if whole.finish_reason is FinishReason.ABORT and not self._num_missing_tokens:
            return replace(whole, finish_reason=FinishReason.LENGTH)
        return whole

    def add(self, part: Generation) -> None:
        """The newest request ended with this."""
        self._parts.append(part)

    def next_request(self) -> GenerationRequest:
        """The request for the next part; the first one is the one given, unchanged."""
        if not self._parts:
            return self._first
        first, num_earlier = self._first, len(self._parts)
        earlier = [token for part in self._parts for token in part.token_ids.tolist()]
        return GenerationRequest(
            request_id=f"{first.request_id}~{num_earlier}",
            prompt_token_ids=[*first.prompt_token_ids, *earlier],
            sampling=replace(first.sampling, max_tokens=first.sampling.max_tokens - len(earlier)),
            seed=resumed_seed(first.seed, num_earlier),
        )

    @property
    def _num_missing_tokens(self) -> int:
        room = self._max_context_tokens - len(self._first.prompt_token_ids)
        return max(0, min(room, self._first.sampling.max_tokens) - self.num_tokens)


def resumed_seed(seed: int, number: int) -> int:
    """The seed of a response's `number`-th resumption."""
    return derived_seed(seed, number)


def joined(parts: Sequence[Generation]) -> Generation:
    """Tokens and logprobs one after another, spans shifted; neighbouring spans of one version become one."""
    spans: list[VersionSpan] = []
    num_tokens = 0
    for part in parts:
        for span in part.spans:
            start, end = num_tokens + span.start, num_tokens + span.end
            if spans and spans[-1].version == span.version:
                start = spans.pop().start
            spans.append(VersionSpan(version=span.version, start=start, end=end))
        num_tokens += len(part.token_ids)
    return Generation(
        token_ids=np.concatenate([int32_array(), *(part.token_ids for part in parts)]),
        behaviour_logprobs=np.concatenate([float32_array(), *(part.behaviour_logprobs for part in parts)]),
        spans=tuple(spans),
        finish_reason=parts[-1].finish_reason if parts else FinishReason.ABORT,
    )
