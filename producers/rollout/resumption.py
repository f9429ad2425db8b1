"""One response from one or more requests: what an aborted request made is kept, and goes on under new weights."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from producers.engines.ports import Generation, GenerationRequest, VersionSpan
from rollog.rules.seeds import derived_seed
from schemas import FinishReason, float32_array, int32_array

if TYPE_CHECKING:
    from collections.abc import Sequence


class ResumableResponse:
    """One response and the generations it is made of, in order.

    A request that goes on has all earlier tokens behind its prompt.
    """

    def __init__(self, request: GenerationRequest, *, max_context_tokens: int) -> None:
        self._first = request
        self._max_context_tokens = max_context_tokens
        self._generations: list[Generation] = []

    @property
    def num_tokens(self) -> int:
        """Response tokens so far."""
        return sum(len(generation.token_ids) for generation in self._generations)

    @property
    def is_complete(self) -> bool:
        """Whether nothing is missing: it ended by itself, or there is no room for another token."""
        return self.generation.finish_reason is not FinishReason.ABORT

    @property
    def generation(self) -> Generation:
        """All generations as one, bit for bit; ABORT means that more could follow."""
        whole = joined(self._generations)
        if whole.finish_reason is FinishReason.ABORT and not self._num_missing_tokens:
            return replace(whole, finish_reason=FinishReason.LENGTH)
        return whole

    def add(self, generation: Generation) -> None:
        """Append what the newest request ended with."""
        self._generations.append(generation)

    def next_request(self) -> GenerationRequest:
        """The request for what is missing; the first one is the one given, unchanged."""
        if not self._generations:
            return self._first
        first, num_earlier = self._first, len(self._generations)
        earlier = [token for generation in self._generations for token in generation.token_ids.tolist()]
        return GenerationRequest(
            request_id=f"{first.request_id}~{num_earlier}",
            prompt_token_ids=[*first.prompt_token_ids, *earlier],
            sampling=replace(first.sampling, max_tokens=first.sampling.max_tokens - len(earlier)),
            seed=resumed_seed(first.seed, num_earlier),
            stop=None if first.stop is None else first.stop.after(earlier),
        )

    @property
    def _num_missing_tokens(self) -> int:
        room = self._max_context_tokens - len(self._first.prompt_token_ids)
        return max(0, min(room, self._first.sampling.max_tokens) - self.num_tokens)


def resumed_seed(seed: int, num_earlier: int) -> int:
    """The seed of a request that goes on after `num_earlier` others: drawing the same numbers again would bias it."""
    return derived_seed(seed, num_earlier)


def joined(generations: Sequence[Generation]) -> Generation:
    """Tokens and logprobs one after another, spans shifted; neighbouring spans of one version become one."""
    spans: list[VersionSpan] = []
    num_tokens = 0
    for generation in generations:
        for span in generation.spans:
            start, end = num_tokens + span.start, num_tokens + span.end
            if spans and spans[-1].version == span.version:
                start = spans.pop().start
            spans.append(VersionSpan(version=span.version, start=start, end=end))
        num_tokens += len(generation.token_ids)
    return Generation(
        token_ids=np.concatenate([int32_array(), *(generation.token_ids for generation in generations)]),
        behaviour_logprobs=np.concatenate(
            [float32_array(), *(generation.behaviour_logprobs for generation in generations)]
        ),
        spans=tuple(spans),
        finish_reason=generations[-1].finish_reason if generations else FinishReason.ABORT,
    )
