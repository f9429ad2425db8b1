"""The divergence from the reference model as a part of the reward (`algorithm.kl_in = "reward"`)."""

from __future__ import annotations

from dataclasses import replace
from itertools import groupby
from typing import TYPE_CHECKING

import numpy as np

from trainer.step.advantages import turn_advantages
from trainer.step.collation import first_pass_micro_batches
from trainer.step.forward import frozen_logprobs
from trainer.step.gathering import gather_by_position
from trainer.step.losses.penalties import divergences
from trainer.step.sequences import positions_by_sample

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rollog.settings.training import AlgorithmConfig
    from trainer.step.ports import StepEngine, TrainingBatch, TrainingSample


def with_kl_in_reward(
    batch: TrainingBatch, engine: StepEngine, algorithm: AlgorithmConfig
) -> tuple[TrainingBatch, dict[str, float]]:
    """The batch with advantages from KL-shaped rewards, where `algorithm` wants them; else the batch as it is.

    The statistic `reward_divergence` is the mean divergence of a sample, in nats.
    """
    if not algorithm.needs_reference or algorithm.kl_in != "reward":
        return batch, {}
    own = behaviour_divergences(batch, engine, algorithm)
    gathered = gather_by_position(engine, {position: np.array([own[position]]) for position in own})
    divergence_of = {position: float(gathered[position][0]) for position in sorted(gathered)}
    mean = sum(divergence_of.values()) / max(len(positions_by_sample(batch)), 1)
    return kl_shaped_rewards(batch, divergence_of, algorithm), {"reward_divergence": mean}


def behaviour_divergences(
    batch: TrainingBatch, engine: StepEngine, algorithm: AlgorithmConfig
) -> dict[int, float]:
    """How far the behaviour policy's responses are from the reference model: a sum over tokens for each position.

    Only for the sequences of this rank. The estimate is `algorithm.kl_estimator` of log-probabilities of the record.
    """
    reference = engine.reference()
    divergence_of: dict[int, float] = {}
    for positions, collated in first_pass_micro_batches(batch, engine):
        sums_B = divergences(
            collated.behaviour_logprobs_BR,
            frozen_logprobs(reference, collated),
            collated.mask_BR,
            algorithm.kl_estimator,
        ).sum(dim=1)
        divergence_of.update(zip(positions, sums_B.tolist(), strict=False))
    return divergence_of


def kl_shaped_rewards(
    batch: TrainingBatch, divergence_of: Mapping[int, float], algorithm: AlgorithmConfig
) -> TrainingBatch:
    """The batch with `kl_coefficient` times each sample's divergence taken off its reward, and advantages from that.

    The response counts as one action (RLOO, arXiv 2402.14740): all its tokens, of all its sequences, share its
    divergence. Of several turns with rewards of their own the last one bears it.
    """
    places_of = positions_by_sample(batch)
    by_sample = [[batch.samples[place] for place in places] for places in places_of]
    rewards = [
        _with_last_reward_lowered(
            rows[0], algorithm.kl_coefficient * sum(divergence_of[place] for place in places)
        )
        for rows, places in zip(by_sample, places_of, strict=True)
    ]
    by_group = groupby(zip(by_sample, rewards, strict=True), key=lambda pair: pair[0][0].group)
    groups = [[turns for _, turns in members] for _, members in by_group]
    advantages = [per_turn for group in turn_advantages(groups, algorithm) for per_turn in group]
    return replace(
        batch,
        samples=tuple(
            _with_rewards(sequence, turns, per_turn)
            for rows, turns, per_turn in zip(by_sample, rewards, advantages, strict=True)
            for sequence in rows
        ),
    )


def _with_rewards(
    sequence: TrainingSample, turns: tuple[float, ...], per_turn: tuple[float, ...]
) -> TrainingSample:
    return replace(
        sequence,
        reward=sum(turns),
        advantage=per_turn[0],
        turn_rewards=turns if sequence.turn_rewards else (),
        turn_advantages=per_turn if sequence.turn_rewards else (),
    )


def _with_last_reward_lowered(sample: TrainingSample, amount: float) -> tuple[float, ...]:
    """The rewards of the sample's turns, or its one reward, with `amount` taken off the last."""
    *earlier, last = sample.turn_rewards or (sample.reward,)
    return (*earlier, last - amount)
