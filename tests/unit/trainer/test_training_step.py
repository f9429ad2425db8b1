"""The stages of a training step: rewards less a divergence, minibatches, old and reference log-probabilities."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from support.small_training import a_batch, a_training_sample, make_model, rewarded
from support.step_engine import DescentEngine, ThreadsMeeting
from torch import Tensor, nn

from rollog.settings.training import AlgorithmConfig, OptimizerConfig
from schemas import MicroBatch
from trainer.engines.multi_rank.messages import of_rank
from trainer.model.policy import Policy, load_model
from trainer.step.advantages import batch_advantages, leave_one_out_advantages
from trainer.step.collation import collated_micro_batch
from trainer.step.forward import frozen_logprobs
from trainer.step.gathering import gather_by_position, sum_over_ranks
from trainer.step.kl_rewards import kl_shaped_rewards, with_kl_in_reward
from trainer.step.minibatches import rank_minibatches
from trainer.step.off_policy import RatioSums
from trainer.step.old_logprobs import old_and_reference_logprobs
from trainer.step.planning import first_pass
from trainer.step.ports import StepSettings, TrainingBatch
from trainer.step.training_step import train_step

if TYPE_CHECKING:
    from pathlib import Path

    from trainer.step.old_logprobs import BatchLogprobs
    from trainer.step.ports import StepResult


class ConstantPolicy(nn.Module):
    """Gives every trained token one log-probability, and counts how often it is asked."""

    def __init__(self, logprob: float) -> None:
        super().__init__()
        self.logprob = logprob
        self.num_calls = 0

    def forward(
        self,
        _ids: Tensor,
        _source: Tensor,
        _target: Tensor,
        _places: Tensor,
        mask_BR: Tensor,
        *,
        position_ids_ST: Tensor | None,
        with_entropy: bool,
        with_values: bool,
    ) -> tuple[Tensor, None, None]:
        assert not with_entropy
        assert not with_values
        assert position_ids_ST is None
        self.num_calls += 1
        return torch.where(mask_BR, self.logprob, 0.0), None, None


def two_groups() -> TrainingBatch:
    groups = [
        rewarded([a_training_sample(seed, mask=[1, 1, 0, 1]) for seed in range(2)], 0),
        rewarded([a_training_sample(seed) for seed in (2, 3, 4)], 1),
    ]
    return TrainingBatch(
        samples=tuple(sample for group in groups for sample in group),
        plan=(
            MicroBatch(minibatch=0, rank=0, positions=(4, 0)),
            MicroBatch(minibatch=1, rank=0, positions=(1, 2, 3)),
        ),
    )


@pytest.mark.parametrize("baseline", ["leave_one_out", "batch"])
def test_a_divergence_is_taken_off_each_reward_before_it_is_compared(baseline: str) -> None:
    batch = two_groups()
    divergence_of = {position: 0.1 * position for position in range(5)}
    algorithm = AlgorithmConfig.model_validate(
        {"advantage": baseline, "normalize_std": baseline == "batch", "kl_coefficient": 2.0}
    )
    shaped = kl_shaped_rewards(batch, divergence_of, algorithm)
    groups = [[0.0, 1.0 - 0.2], [0.0 - 0.4, 1.0 - 0.6, 2.0 - 0.8]]
    expected = (
        [leave_one_out_advantages(group) for group in groups]
        if baseline == "leave_one_out"
        else batch_advantages(groups)
    )
    assert [sample.advantage for sample in shaped.samples] == pytest.approx(
        [float(advantage) for group in expected for advantage in group], abs=1e-6
    )
    assert [sample.reward for sample in shaped.samples] == pytest.approx(
        [reward for group in groups for reward in group]
    )
    assert shaped.plan == batch.plan


def test_a_divergence_is_taken_off_the_last_turn() -> None:
    batch = two_groups()
    turned = replace(batch.samples[0], turn_rewards=(2.0, 1.0))
    batch = replace(batch, samples=(turned, *batch.samples[1:]))
    algorithm = AlgorithmConfig(advantage="return", normalize_std=False, kl_coefficient=2.0)
    first, second, *_ = kl_shaped_rewards(batch, dict.fromkeys(range(5), 0.25), algorithm).samples
    assert (first.turn_rewards, first.turn_advantages) == ((2.0, 0.5), (2.5, 0.5))
    assert (second.turn_rewards, second.turn_advantages, second.advantage) == ((), (), 0.5)


def test_the_divergence_of_a_response_is_the_sum_over_its_trained_tokens_of_mu_against_the_reference() -> (
    None
):
    batch = two_groups()
    algorithm = AlgorithmConfig(type="rloo", kl_coefficient=0.5, max_response_tokens=8)
    reference = ConstantPolicy(-2.5)
    shaped, statistics = with_kl_in_reward(batch, DescentEngine(ConstantPolicy(-1.0), reference), algorithm)
    divergences = [
        float((sample.behaviour_logprobs + 2.5)[sample.loss_mask != 0].sum()) for sample in batch.samples
    ]
    rewards = [
        sample.reward - 0.5 * divergence
        for sample, divergence in zip(batch.samples, divergences, strict=True)
    ]
    expected = [*leave_one_out_advantages(rewards[:2]), *leave_one_out_advantages(rewards[2:])]
    assert [sample.advantage for sample in shaped.samples] == pytest.approx(expected, abs=1e-5)
    assert statistics["reward_divergence"] == pytest.approx(sum(divergences) / 5, abs=1e-5)
    assert reference.num_calls == 2


def test_without_a_need_no_other_policy_is_asked() -> None:
    policy = ConstantPolicy(-1.0)
    batch, algorithm = a_batch(num_minibatches=2), AlgorithmConfig()
    assert with_kl_in_reward(batch, DescentEngine(policy), algorithm) == (batch, {})
    fixed_logprobs = old_and_reference_logprobs(batch, DescentEngine(policy), algorithm)
    assert (fixed_logprobs.old, fixed_logprobs.reference) == (None, None)
    assert policy.num_calls == 0


def test_the_policy_before_the_step_is_asked_once_for_all_but_the_first_minibatch() -> None:
    policy = ConstantPolicy(-1.5)
    batch, algorithm = a_batch(num_minibatches=2, micro_batch_tokens=25), AlgorithmConfig(type="tis")
    engine = DescentEngine(policy)
    first, second = rank_minibatches(batch, 0, algorithm)
    fixed_logprobs = old_and_reference_logprobs(batch, engine, algorithm)
    assert policy.num_calls == len(second.micro_batches) > 1
    for positions in first.micro_batches:
        collated = collated_micro_batch(batch, positions, engine)
        assert fixed_logprobs.of_micro_batch(first, positions, collated).old_BR is None
    for positions in second.micro_batches:
        collated = collated_micro_batch(batch, positions, engine)
        old_BR = fixed_logprobs.of_micro_batch(second, positions, collated).old_BR
        assert old_BR is not None
        assert not old_BR.requires_grad
        assert torch.equal(old_BR, frozen_logprobs(policy, collated))


def test_the_reference_is_asked_for_every_micro_batch_where_the_loss_needs_it() -> None:
    policy, reference = ConstantPolicy(-1.0), ConstantPolicy(-2.0)
    batch, algorithm = a_batch(num_minibatches=2), AlgorithmConfig(kl_coefficient=0.1)
    fixed_logprobs = old_and_reference_logprobs(batch, DescentEngine(policy, reference), algorithm)
    assert (policy.num_calls, reference.num_calls) == (0, len(batch.plan))
    assert fixed_logprobs.reference is not None
    assert fixed_logprobs.reference.keys() == set(range(len(batch.samples)))


def test_in_several_passes_both_are_computed_once_and_are_those_of_each_sample() -> None:
    policy, reference = ConstantPolicy(-1.0), ConstantPolicy(-2.0)
    algorithm = AlgorithmConfig(type="tis", kl_coefficient=0.1)
    batch = a_batch(num_minibatches=2, micro_batch_tokens=25, num_epochs=3)
    engine = DescentEngine(policy, reference)
    fixed_logprobs = old_and_reference_logprobs(batch, engine, algorithm)
    assert policy.num_calls == reference.num_calls == len(first_pass(batch.plan))
    for minibatch in rank_minibatches(batch, 0, algorithm):
        for positions in minibatch.micro_batches:
            collated = collated_micro_batch(batch, positions, engine)
            fixed = fixed_logprobs.of_micro_batch(minibatch, positions, collated)
            assert fixed.reference_BR is not None
            assert torch.equal(fixed.reference_BR, frozen_logprobs(reference, collated))
            assert (fixed.old_BR is None) is minibatch.is_first
            if fixed.old_BR is not None:
                assert torch.equal(fixed.old_BR, frozen_logprobs(policy, collated))


def test_in_a_later_pass_a_rank_has_those_that_another_rank_computed() -> None:
    algorithm = AlgorithmConfig(type="tis", kl_coefficient=0.1)
    batch = a_batch(num_minibatches=2, world_size=2, micro_batch_tokens=25, num_epochs=3)
    meeting = ThreadsMeeting(2)

    def logprobs_by(rank: int) -> BatchLogprobs:
        policy, reference = ConstantPolicy(-1.0 - rank), ConstantPolicy(-4.0 - rank)
        engine = DescentEngine(policy, reference, rank=rank, exchange=meeting.exchange)
        return old_and_reference_logprobs(of_rank(batch, rank), engine, algorithm)

    with ThreadPoolExecutor(2) as pool:
        of_ranks = list(pool.map(logprobs_by, (0, 1)))
    for planned in first_pass(batch.plan):
        for position in planned.positions:
            for found in of_ranks:
                assert found.old is not None
                assert found.reference is not None
                trained = torch.from_numpy(batch.samples[position].loss_mask != 0)
                assert set(found.old[position][trained].tolist()) == {-1.0 - planned.rank}
                assert set(found.reference[position][trained].tolist()) == {-4.0 - planned.rank}


@pytest.mark.engine
def test_two_ranks_take_the_steps_of_one(tmp_path: Path) -> None:
    model_path = make_model(tmp_path)
    settings = StepSettings(
        algorithm=AlgorithmConfig(type="tis", kl_coefficient=0.1),
        optimizer=OptimizerConfig(learning_rate=0.1, max_gradient_norm=1e6),
        num_optimizer_steps=100,
    )

    def engines(world_size: int) -> list[DescentEngine]:
        meeting = ThreadsMeeting(world_size)
        policies = [
            [Policy(load_model(model_path, None, "float32"), 1.0) for _ in range(2)]
            for _ in range(world_size)
        ]
        return [
            DescentEngine(policy, reference, rank=rank, exchange=meeting.exchange)
            for rank, (policy, reference) in enumerate(policies)
        ]

    def step_of(engine: DescentEngine, world_size: int) -> StepResult:
        batch = a_batch(0, num_minibatches=1, world_size=world_size, micro_batch_tokens=25)
        return train_step(of_rank(batch, engine.rank), engine, settings, steps_taken=3)

    alone = step_of(engines(1)[0], 1)
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(step_of, engines(2), (2, 2))
    assert (first.losses, first.statistics) == (second.losses, second.statistics)
    assert first.losses == pytest.approx(alone.losses, abs=1e-6)
    assert first.statistics == pytest.approx(alone.statistics, rel=1e-4, abs=1e-6)
    assert first.learning_rates == alone.learning_rates


def test_arrays_of_all_ranks_come_by_position_bit_for_bit() -> None:
    meeting = ThreadsMeeting(3)
    odd = np.array([0.1 + 0.2, float(np.float32(1 / 3)), -0.0, np.nan, 2.0**53])
    entries = [{4: odd, 0: np.zeros(0)}, {}, {2: np.array([5e-324])}]

    def gathered_by(rank: int) -> dict[int, bytes]:
        engine = DescentEngine(ConstantPolicy(0.0), rank=rank, exchange=meeting.exchange)
        gathered = gather_by_position(engine, entries[rank])
        return {position: array.tobytes() for position, array in gathered.items()}

    with ThreadPoolExecutor(3) as pool:
        of_ranks = list(pool.map(gathered_by, range(3)))
    expected = {4: odd.tobytes(), 0: b"", 2: np.array([5e-324]).tobytes()}
    assert of_ranks == [expected] * 3


def test_a_step_without_a_minibatch_has_no_losses() -> None:
    assert sum_over_ranks([], DescentEngine(ConstantPolicy(0.0))) == ((), [])
    share = (0.5, RatioSums(num_tokens=2, entropy=0.25))
    assert sum_over_ranks([share], DescentEngine(ConstantPolicy(0.0))) == ((0.5,), [share[1]])


def test_the_constant_of_sequence_sum_is_the_longest_response() -> None:
    algorithm = AlgorithmConfig(type="dr_grpo", max_response_tokens=77)
    for minibatch in rank_minibatches(a_batch(), 0, algorithm):
        assert minibatch.denominators.tokens_per_sample == 77
