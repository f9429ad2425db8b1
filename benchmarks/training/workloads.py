"""What is trained to measure speed: models, and batches as a run would record them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import TYPE_CHECKING

import numpy as np

from benchmarks.harness.random_model import ModelShape, random_model
from schemas.arrays import float32_array, int32_array, uint8_array
from trainer.step.planning import plan_step, step_seed
from trainer.step.ports import TrainingBatch, TrainingSample

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from schemas import MicroBatch

_larger_shape = ModelShape(
    vocab_size=8192, hidden_size=256, intermediate_size=1024, num_layers=4, num_heads=8, num_key_value_heads=4
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What is trained: a model and batches of `num_groups` groups.

    `response_tokens` are equally likely lengths of a response, `prompt_tokens` the least and most of a prompt.
    """

    name: str
    model_path: str
    vocabulary: int
    num_groups: int
    group_size: int
    num_minibatches: int
    micro_batch_tokens: int
    prompt_tokens: tuple[int, int]
    response_tokens: tuple[int, ...]


def demo_workload(model_path: Path | str, vocabulary: int) -> Workload:
    """A batch of the demo: its model, and lengths as 768 recorded responses of a run had them (mean 8, longest 24)."""
    return Workload(
        name="demo",
        model_path=str(model_path),
        vocabulary=vocabulary,
        num_groups=16,
        group_size=16,
        num_minibatches=4,
        micro_batch_tokens=16384,
        prompt_tokens=(6, 6),
        response_tokens=(*[6] * 29, *[12] * 9, 18, 24),
    )


def larger_workload(directory: Path, seed: int) -> Workload:
    """Longer texts and a model of 6 million parameters, written to `directory`: lengths are lognormal, mean 65."""
    random_model(_larger_shape, max_context_tokens=1024, seed=seed).save_pretrained(directory)
    return Workload(
        name="larger",
        model_path=str(directory),
        vocabulary=_larger_shape.vocab_size,
        num_groups=8,
        group_size=4,
        num_minibatches=2,
        micro_batch_tokens=1024,
        prompt_tokens=(16, 48),
        response_tokens=lognormal(median=48.0, variation=1.0, longest=256),
    )


def lognormal(*, median: float, variation: float, longest: int, count: int = 40) -> tuple[int, ...]:
    """Equally likely values of a lognormal distribution, cut off at `longest`."""
    sigma = math.sqrt(math.log(1 + variation**2))
    shares = [(number + 0.5) / count for number in range(count)]
    return tuple(
        min(max(round(median * math.exp(sigma * NormalDist().inv_cdf(share))), 1), longest)
        for share in shares
    )


def a_batch(workload: Workload, *, number: int, seed: int) -> TrainingBatch:
    """A batch as a run would record it: a plan for padding, advantages of both signs, mu near the policy's."""
    draw = np.random.default_rng([seed, number])
    groups = [
        [_sample(workload, draw) for _ in range(workload.group_size)] for _ in range(workload.num_groups)
    ]
    samples = tuple(sample for group in groups for sample in group)
    return TrainingBatch(
        samples=samples, plan=plan_of(workload, samples, number=number, seed=seed, packing=False)
    )


def plan_of(
    workload: Workload, samples: Sequence[TrainingSample], *, number: int, seed: int, packing: bool
) -> tuple[MicroBatch, ...]:
    """The micro-batches of batch `number`."""
    lengths = [sample.num_tokens for sample in samples]
    size = workload.group_size
    return plan_step(
        [lengths[begin : begin + size] for begin in range(0, len(lengths), size)],
        num_minibatches=workload.num_minibatches,
        world_size=1,
        micro_batch_tokens=workload.micro_batch_tokens,
        seed=step_seed(seed, number),
        packing=packing,
    )


def _sample(workload: Workload, draw: np.random.Generator) -> TrainingSample:
    least, most = workload.prompt_tokens
    prompt = int(draw.integers(least, most + 1))
    length = int(draw.choice(workload.response_tokens))
    return TrainingSample(
        prompt_token_ids=int32_array(draw.integers(0, workload.vocabulary, prompt)),
        token_ids=int32_array(draw.integers(0, workload.vocabulary, length)),
        behaviour_logprobs=float32_array(-math.log(workload.vocabulary) + 0.1 * draw.standard_normal(length)),
        loss_mask=uint8_array(np.ones(length)),
        advantage=float(draw.standard_normal()),
    )
