"""Samples as long as a larger model's, and as short as the demo's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from schemas import (
    FinishReason,
    Kind,
    Sample,
    Segment,
    Status,
    float32_array,
    int32_array,
    sample_id,
    uint8_array,
)

if TYPE_CHECKING:
    import random


@dataclass(frozen=True, slots=True)
class Size:
    """Of a sample, in tokens and words."""

    prompt_tokens: int
    response_tokens: int
    words: int


large = Size(prompt_tokens=80, response_tokens=580, words=72)
small = Size(prompt_tokens=6, response_tokens=11, words=11)
"""As long as the demo's: its prompts, and the mean of the responses it trains."""


def a_sample(number: int, noise: random.Random, size: Size = large) -> Sample:
    """A finished sample; a large one has about 6 KB."""
    length = size.response_tokens
    return Sample(
        sample_id=sample_id(number, 0, 0),
        task_id=f"1.{number}",
        kind=Kind.TRAINING,
        status=Status.FINISHED,
        epoch=1,
        grant_id="1.1",
        worker_id="rollout-0123456789abcdef",
        group_id=number,
        replica=0,
        attempt=0,
        prompt_id=str(number),
        seed=number,
        prompt_token_ids=int32_array([noise.randrange(32000) for _ in range(size.prompt_tokens)]),
        token_ids=int32_array([noise.randrange(32000) for _ in range(length)]),
        behaviour_logprobs=float32_array([-noise.random() for _ in range(length)]),
        loss_mask=uint8_array(np.ones(length)),
        segments=(Segment(version=3, weights_digest="0123456789abcdef", start=0, end=length),),
        response_text=" ".join(["and"] * size.words),
        reward=1.0,
        reward_components={"correct": 1.0},
        finish_reason=FinishReason.STOP,
    )
