"""From trained groups to a training batch: what the live trainer, a redo and a plain loop do alike.

A step is a function of these samples in this order, of the plan, and of the engine's state; nothing else goes in.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from rollog.kernel.errors import DataError, EngineError
from rollog.rules.headers import is_drawn_at
from schemas import int32_array, num_turns, uint8_array
from trainer.step.advantages import overlong_penalty, turn_advantages
from trainer.step.planning import plan_step
from trainer.step.ports import TrainingBatch, TrainingSample
from trainer.step.sequences import turns_of_tokens

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rollog.settings.training import AlgorithmConfig, TrainerConfig
    from schemas import MicroBatch, Row, Sample
    from schemas.arrays import Int32Array, UInt8Array
    from trainer.step.ports import StepResult


def training_batch(
    groups: Sequence[Sequence[Sample]],
    plan: Sequence[MicroBatch],
    algorithm: AlgorithmConfig,
    temperature: float,
    *,
    version: int | None = None,
) -> TrainingBatch:
    """The groups of one step, in training order, with their advantages.

    `version` is the one that the step makes; without it the lags of tokens are not known.

    Raises:
        DataError: a sample has no reward, or was drawn at another temperature than the trainer's.
    """
    rewards = [[shaped_rewards(sample, algorithm) for sample in group] for group in groups]
    advantages = turn_advantages(rewards, algorithm)
    sequences: list[TrainingSample] = []
    num_samples = 0
    for index, group in enumerate(groups):
        for sample, turns, per_turn in zip(group, rewards[index], advantages[index], strict=True):
            _check_temperature(sample, temperature)
            worth = _Worth(group=index, number=num_samples, turn_rewards=turns, turn_advantages=per_turn)
            is_left_out = algorithm.mask_truncated and sample.is_truncated
            current = None if version is None else version - 1
            sequences += _sequences(sample, worth, is_left_out=is_left_out, current=current)
            num_samples += 1
    return TrainingBatch(samples=tuple(sequences), plan=tuple(plan))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Worth:
    """What all sequences of a sample share: its place, and what came of its turns, or of it as one."""

    group: int
    number: int
    turn_rewards: tuple[float, ...]
    turn_advantages: tuple[float, ...]


def _sequences(
    sample: Sample, worth: _Worth, *, is_left_out: bool, current: int | None
) -> Iterator[TrainingSample]:
    """One row per sequence; `current` is the version that the step begins with. Nothing of one left out is trained."""
    rows = sample.rows()
    masks = [np.zeros_like(row.loss_mask) if is_left_out else _loss_mask(row) for row in rows]
    num_trained = sum(int(np.count_nonzero(mask)) for mask in masks)
    has_turns = bool(_turn_rewards(sample)) and not is_left_out
    of_tokens = turns_of_tokens(sample.turns, rows) if has_turns and sample.turns else [None] * len(rows)
    for row, mask, turns in zip(rows, masks, of_tokens, strict=True):
        yield TrainingSample(
            prompt_token_ids=row.prompt_token_ids,
            token_ids=row.token_ids,
            behaviour_logprobs=row.behaviour_logprobs,
            loss_mask=mask,
            advantage=worth.turn_advantages[0],
            group=worth.group,
            reward=sum(worth.turn_rewards),
            turn_rewards=worth.turn_rewards if has_turns else (),
            turn_advantages=worth.turn_advantages if has_turns else (),
            lags=None if current is None else _lags(row, current),
            sample=worth.number,
            num_sample_tokens=num_trained,
            turns=turns,
        )


def shaped_rewards(sample: Sample, algorithm: AlgorithmConfig) -> tuple[float, ...]:
    """What advantages are computed from: the rewards of the sample's turns, or its one reward.

    What it loses for its length is taken off the last. Raises DataError for a sample without reward.
    """
    if sample.reward is None:
        raise DataError(f"sample {sample.sample_id} is to be trained but has no reward")
    rewards = _turn_rewards(sample) or (sample.reward,)
    if algorithm.overlong_share == 0:
        return rewards
    lost = overlong_penalty(
        sample.num_sampled_tokens,
        max_tokens=algorithm.response_budget,
        share=algorithm.overlong_share,
        penalty=algorithm.overlong_penalty,
    )
    return (*rewards[:-1], rewards[-1] - lost)


def _turn_rewards(sample: Sample) -> tuple[float, ...]:
    """Those of all turns that the sample names; where it names none, of turns that can be trained.

    Counted by the loss mask, a first turn of one token that nothing predicts is none.
    """
    if sample.turns or not sample.turn_rewards:
        return sample.turn_rewards
    return sample.turn_rewards[len(sample.turn_rewards) - num_turns(_loss_mask(sample)) :]


def plan_groups(
    groups: Sequence[Sequence[Sample]], trainer: TrainerConfig, *, world_size: int, seed: int
) -> tuple[MicroBatch, ...]:
    """The micro-batches of one step over these groups. Positions number sequences, by sample, then by sequence."""
    return plan_step(
        [
            [len(row.prompt_token_ids) + len(row.token_ids) for sample in group for row in sample.rows()]
            for group in groups
        ],
        num_minibatches=trainer.num_minibatches,
        world_size=world_size,
        micro_batch_tokens=trainer.micro_batch_tokens,
        seed=seed,
        packing=trainer.packing,
        num_epochs=trainer.num_epochs,
    )


def check_finite(result: StepResult, version: int) -> None:
    """Raise EngineError for a loss or gradient norm that is no number: weights made by it are never published."""
    if not all(math.isfinite(value) for value in (*result.losses, *result.gradient_norms)):
        raise EngineError(
            f"the step to version {version} gave losses {list(result.losses)} and gradient norms "
            f"{list(result.gradient_norms)}; nothing was published: lower optimizer.learning_rate or check the model"
        )


def _loss_mask(row: Row | Sample) -> UInt8Array:
    mask = row.loss_mask
    if len(row.prompt_token_ids) == 0 and len(mask):
        return uint8_array(np.concatenate(([0], mask[1:])))  # nothing predicts the first token of all
    return mask


def _lags(row: Row, current: int) -> Int32Array:
    """Versions from the one that generated each token to `current`."""
    lags = np.full(len(row.token_ids), -1)
    for segment in row.segments:
        lags[segment.start : segment.end] = current - segment.version
    return int32_array(lags)


def _check_temperature(sample: Sample, temperature: float) -> None:
    if not is_drawn_at(sample, temperature):
        raise DataError(
            f"sample {sample.sample_id} was drawn at temperature {sample.temperature}, the trainer divides logits "
            f"by {temperature}; every role must use the manifest's sampling.temperature"
        )
