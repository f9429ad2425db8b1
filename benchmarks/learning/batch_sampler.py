"""Responses to many prompts at once: what stands for an inference engine where learning alone is measured.

One model, one process; every token comes with its log-probability under the distribution it was drawn from. Prompts
of one length are computed together with a cache of keys and values, so nothing is padded.

Shapes: B prompts of one length, T tokens computed at once, R response positions, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from transformers import DynamicCache

from schemas import FinishReason, float32_array, int32_array

if TYPE_CHECKING:
    from collections.abc import Sequence

    from transformers import PreTrainedModel

    from schemas.arrays import Float32Array, Int32Array


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Response:
    """One response. The token that ended it is part of it."""

    token_ids: Int32Array
    logprobs: Float32Array
    finish_reason: FinishReason


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Decoding:
    """How tokens are chosen. Greedy at temperature 0; log-probabilities are then those at temperature 1."""

    max_tokens: int
    stop_token_ids: frozenset[int]
    temperature: float


def sample_responses(
    model: PreTrainedModel,
    prompts: Sequence[Sequence[int]],
    decoding: Decoding,
    generator: torch.Generator,
) -> list[Response]:
    """A response to each prompt, in order; `generator` (on the CPU) is not touched by greedy decoding."""
    responses: dict[int, Response] = {}
    for length in sorted({len(prompt) for prompt in prompts}):
        places = [place for place, prompt in enumerate(prompts) if len(prompt) == length]
        found = _sample_equally_long(model, [prompts[place] for place in places], decoding, generator)
        responses.update(zip(places, found, strict=True))
    return [responses[place] for place in range(len(prompts))]


@torch.inference_mode()
def _sample_equally_long(
    model: PreTrainedModel,
    prompts: Sequence[Sequence[int]],
    decoding: Decoding,
    generator: torch.Generator,
) -> list[Response]:
    stop_ids = torch.tensor(sorted(decoding.stop_token_ids))
    tokens_BR = torch.zeros(len(prompts), decoding.max_tokens, dtype=torch.long)
    logprobs_BR = torch.zeros(len(prompts), decoding.max_tokens)
    lengths_B = torch.zeros(len(prompts), dtype=torch.long)
    is_stopped_B = torch.zeros(len(prompts), dtype=torch.bool)
    cache = DynamicCache(config=model.config)
    input_ids_BT = torch.tensor(prompts)
    running = torch.arange(len(prompts))
    for position in range(decoding.max_tokens):
        output = model(
            input_ids=input_ids_BT.to(model.device), past_key_values=cache, use_cache=True, logits_to_keep=1
        )
        drawn, drawn_logprobs = _draw(output.logits[:, -1].float().cpu(), decoding.temperature, generator)
        tokens_BR[running, position] = drawn
        logprobs_BR[running, position] = drawn_logprobs
        lengths_B[running] = position + 1
        ends = torch.isin(drawn, stop_ids)
        is_stopped_B[running[ends]] = True
        if ends.all():
            break
        if ends.any():
            kept = (~ends).nonzero()[:, 0]
            cache.batch_select_indices(kept.to(model.device))
            running, drawn = running[kept], drawn[kept]
        input_ids_BT = drawn[:, None]
    return [
        Response(
            token_ids=int32_array(tokens_BR[row, :length].numpy()),
            logprobs=float32_array(logprobs_BR[row, :length].numpy()),
            finish_reason=FinishReason.STOP if is_stopped else FinishReason.LENGTH,
        )
        for row, (length, is_stopped) in enumerate(
            zip(lengths_B.tolist(), is_stopped_B.tolist(), strict=True)
        )
    ]


def _draw(logits_BV: Tensor, temperature: float, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """One token of each row and its log-probability."""
    if temperature > 0:
        logprobs_BV = (logits_BV / temperature).log_softmax(dim=-1)
        # The largest of log-probability minus log of exponential noise is a draw from the distribution.
        noise_BV = torch.empty_like(logprobs_BV).exponential_(generator=generator)
        tokens_B = (logprobs_BV - noise_BV.log()).argmax(dim=-1)
    else:
        logprobs_BV = logits_BV.log_softmax(dim=-1)
        tokens_B = logprobs_BV.argmax(dim=-1)
    return tokens_B, logprobs_BV.gather(1, tokens_B[:, None])[:, 0]
