"""What a step computes before its first minibatch, and the advantages after a divergence is taken off."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from support.small_training import a_batch, a_training_sample, rewarded
from torch import Tensor, nn

from rollog.settings.training import AlgorithmConfig
from schemas import MicroBatch
from trainer.engines.ports import TrainingBatch
from trainer.step.advantages import batch_advantages, leave_one_out_advantages
from trainer.step.gradients import anchors_of, less_divergence, minibatches, step_work

cpu = torch.device("cpu")


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
    found = less_divergence(batch, divergence_of, algorithm)
    groups = [[0.0, 1.0 - 0.2], [0.0 - 0.4, 1.0 - 0.6, 2.0 - 0.8]]
    expected = (
        [leave_one_out_advantages(group) for group in groups]
        if baseline == "leave_one_out"
        else batch_advantages(groups)
    )
    assert [sample.advantage for sample in found.samples] == pytest.approx(
        [float(each) for group in expected for each in group], abs=1e-6
    )
    assert [sample.reward for sample in found.samples] == pytest.approx(
        [each for group in groups for each in group]
    )
    assert found.plan == batch.plan


def test_a_divergence_is_taken_off_the_last_turn() -> None:
    batch = two_groups()
    turned = replace(batch.samples[0], turn_rewards=(2.0, 1.0))
    batch = replace(batch, samples=(turned, *batch.samples[1:]))
    algorithm = AlgorithmConfig(advantage="return", normalize_std=False, kl_coefficient=2.0)
    first, second, *_ = less_divergence(batch, dict.fromkeys(range(5), 0.25), algorithm).samples
    assert (first.turn_rewards, first.turn_advantages) == ((2.0, 0.5), (2.5, 0.5))
    assert (second.turn_rewards, second.turn_advantages, second.advantage) == ((), (), 0.5)


def test_the_divergence_of_a_response_is_the_sum_over_its_trained_tokens_of_mu_against_the_reference() -> (
    None
):
    batch = two_groups()
    algorithm = AlgorithmConfig(type="rloo", kl_coefficient=0.5, max_response_tokens=8)
    reference = ConstantPolicy(-2.5)
    work = step_work(
        ConstantPolicy(-1.0), reference, batch, algorithm, rank=0, device=cpu, gather=lambda found: found
    )
    divergences = [
        float((sample.behaviour_logprobs + 2.5)[sample.loss_mask != 0].sum()) for sample in batch.samples
    ]
    rewards = [
        sample.reward - 0.5 * divergence
        for sample, divergence in zip(batch.samples, divergences, strict=True)
    ]
    expected = [*leave_one_out_advantages(rewards[:2]), *leave_one_out_advantages(rewards[2:])]
    trained = [sample for part in work.minibatches for samples in part.micro_batches for sample in samples]
    assert [sample.advantage for sample in trained] == pytest.approx(
        [expected[position] for position in (4, 0, 1, 2, 3)], abs=1e-5
    )
    assert work.statistics["reward_divergence"] == pytest.approx(sum(divergences) / 5, abs=1e-5)
    assert reference.num_calls == 2


def test_without_a_need_no_other_policy_is_asked() -> None:
    policy = ConstantPolicy(-1.0)
    batch = a_batch(num_minibatches=2)
    work = step_work(policy, None, batch, AlgorithmConfig(), rank=0, device=cpu, gather=lambda found: found)
    assert policy.num_calls == 0
    assert all(
        anchor.proximal_BR is None and anchor.reference_BR is None
        for anchors in work.anchors
        for anchor in anchors
    )
    assert [len(anchors) for anchors in work.anchors] == [
        len(part.micro_batches) for part in work.minibatches
    ]


def test_the_proximal_policy_is_asked_once_for_all_but_the_first_minibatch() -> None:
    policy = ConstantPolicy(-1.5)
    algorithm = AlgorithmConfig(type="tis")
    work = minibatches(a_batch(num_minibatches=2, micro_batch_tokens=25), 0, algorithm)
    first, second = anchors_of(policy, None, work, algorithm, device=cpu)
    assert policy.num_calls == len(second) > 1
    assert all(anchor.proximal_BR is None for anchor in first)
    assert all(anchor.proximal_BR is not None and not anchor.proximal_BR.requires_grad for anchor in second)


def test_the_reference_is_asked_for_every_micro_batch_where_the_loss_needs_it() -> None:
    policy, reference = ConstantPolicy(-1.0), ConstantPolicy(-2.0)
    algorithm = AlgorithmConfig(kl_coefficient=0.1)
    work = minibatches(a_batch(num_minibatches=2), 0, algorithm)
    found = [
        anchor for anchors in anchors_of(policy, reference, work, algorithm, device=cpu) for anchor in anchors
    ]
    assert (policy.num_calls, reference.num_calls) == (0, len(found))
    assert all(anchor.reference_BR is not None for anchor in found)


def test_the_constant_of_sequence_sum_is_the_longest_response() -> None:
    algorithm = AlgorithmConfig(type="dr_grpo", max_response_tokens=77)
    for part in minibatches(a_batch(), 0, algorithm):
        assert part.denominators.tokens_per_sequence == 77
