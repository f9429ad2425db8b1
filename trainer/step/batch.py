"""From trained groups to a training batch: what the live trainer, a redo and a plain loop do alike.

A step is a function of these samples in this order, of the plan, and of the engine's state; nothing else goes in.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from rollog.kernel.errors import DataError, EngineError
from rollog.rules.headers import is_drawn_at
from schemas import int32_array, num_turns, uint8_array
from trainer.step.advantages import overlong_penalty, turn_advantages
from trainer.step.planning import plan_step
from trainer.step.ports import TrainingBatch, TrainingSample

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rollog.settings.training import AlgorithmConfig, TrainerConfig
    from schemas import MicroBatch, Sample
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
    samples: list[TrainingSample] = []
    for index, group in enumerate(groups):
        for sample, turns, per_turn in zip(group, rewards[index], advantages[index], strict=True):
            _check_temperature(sample, temperature)
            is_left_out = algorithm.mask_truncated and sample.is_truncated
            has_turns = bool(_turn_rewards(sample)) and not is_left_out
            samples.append(
                TrainingSample(
                    prompt_token_ids=sample.prompt_token_ids,
                    token_ids=sample.token_ids,
                    behaviour_logprobs=sample.behaviour_logprobs,
                    loss_mask=np.zeros_like(sample.loss_mask) if is_left_out else _loss_mask(sample),
                    advantage=per_turn[0],
                    group=index,
                    reward=sum(turns),
                    turn_rewards=turns if has_turns else (),
                    turn_advantages=per_turn if has_turns else (),
                    lags=None if version is None else _lags(sample, version - 1),
                )
            )
    return TrainingBatch(samples=tuple(samples), plan=tuple(plan))


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
        int(np.count_nonzero(sample.loss_mask)),
        max_tokens=algorithm.response_budget,
        share=algorithm.overlong_share,
        penalty=algorithm.overlong_penalty,
    )
    return (*rewards[:-1], rewards[-1] - lost)


def _turn_rewards(sample: Sample) -> tuple[float, ...]:
    """Those of turns that can be trained: a first turn of one token that nothing predicts cannot."""
    if not sample.turn_rewards:
        return ()
    return sample.turn_rewards[len(sample.turn_rewards) - num_turns(_loss_mask(sample)) :]


def plan_groups(
    groups: Sequence[Sequence[Sample]], trainer: TrainerConfig, *, world_size: int, seed: int
) -> tuple[MicroBatch, ...]:
    """The micro-batches of one step over these groups."""
    return plan_step(
        [[len(sample.prompt_token_ids) + sample.num_tokens for sample in group] for group in groups],
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


def _loss_mask(sample: Sample) -> UInt8Array:
    mask = sample.loss_mask
    if len(sample.prompt_token_ids) == 0 and len(mask):
        return uint8_array(np.concatenate(([0], mask[1:])))  # nothing predicts the first token of all
    return mask


def _lags(sample: Sample, current: int) -> Int32Array:
    """Versions from the one that generated each token to `current`."""
    lags = np.full(sample.num_tokens, -1)
    for segment in sample.segments:
        lags[segment.start : segment.end] = current - segment.version
    return int32_array(lags)


def _check_temperature(sample: Sample, temperature: float) -> None:
    if not is_drawn_at(sample, temperature):
        raise DataError(
            f"sample {sample.sample_id} was drawn at temperature {sample.temperature}, the trainer divides logits "
            f"by {temperature}; every role must use the manifest's sampling.temperature"
        )
