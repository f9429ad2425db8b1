"""A rollout counts once (I13): how its turns are shared out among sequences changes nothing.

A reader who takes each sequence for a sample of its own is told apart.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from support.forked_samples import (
    RecurrentPolicy,
    a_session,
    an_episode,
    budget,
    forked,
    slow_loss,
    trained,
)
from torch import nn

from rollog.settings.training import AlgorithmConfig, TrainerConfig
from schemas import Sample, sample_id
from trainer.step.batch import plan_groups

if TYPE_CHECKING:
    from collections.abc import Sequence

aggregations = ("token_mean", "sequence_mean", "sequence_sum")
rounded = 1e-6
"""Where log-probabilities, values or advantages pass through float32 on the way."""


def an_algorithm(**changes: Any) -> AlgorithmConfig:
    values = {
        "type": "ppo",
        "advantage": "leave_one_out",
        "normalize_std": False,
        "max_response_tokens": budget,
    }
    return AlgorithmConfig.model_validate(values | changes)


def episodes(seed: int, **changes: Any) -> list[list[Sample]]:
    return [[an_episode(group, replica, seed=seed, **changes) for replica in range(3)] for group in range(3)]


def sessions(seed: int, **changes: Any) -> list[list[Sample]]:
    return [[a_session(group, replica, seed=seed, **changes) for replica in range(3)] for group in range(3)]


def with_forks(groups: Sequence[Sequence[Sample]], seed: int) -> list[list[Sample]]:
    draw = np.random.default_rng(seed)
    found = [[forked(sample, draw) for sample in group] for group in groups]
    assert sum(len(sample.forks) for group in found for sample in group) >= 5
    return found


def distance(left: torch.Tensor, right: torch.Tensor) -> float:
    return (left - right).detach().abs().max().item()


@pytest.mark.parametrize("aggregation", aggregations)
@pytest.mark.parametrize("turn_rewards", [False, True])
@pytest.mark.parametrize(("world_size", "packing"), [(1, False), (2, False), (2, True)])
def test_forks_of_equal_context_change_neither_loss_nor_gradient(
    aggregation: str, turn_rewards: bool, world_size: int, packing: bool
) -> None:
    for seed in range(3):
        groups = episodes(seed, turn_rewards=turn_rewards)
        algorithm = an_algorithm(aggregation=aggregation)
        plain = trained(groups, algorithm, num_minibatches=2)
        found = trained(
            with_forks(groups, seed), algorithm, num_minibatches=2, world_size=world_size, packing=packing
        )
        assert found.result.losses == pytest.approx(plain.result.losses, abs=1e-13)
        assert distance(found.parameters, plain.parameters) < 1e-12
        assert (
            distance(found.parameters, nn.utils.parameters_to_vector(RecurrentPolicy().parameters())) > 1e-3
        )


@pytest.mark.parametrize(
    "changes",
    [
        {"type": "decoupled_ppo", "num": 2},
        {"type": "cispo"},
        {"kl_coefficient": 0.1, "kl_in": "loss"},
        {"kl_coefficient": 0.1, "kl_in": "reward", "kl_estimator": "k1"},
        {"advantage": "gae", "gae_lambda": 1.0, "discount": 1.0},
        {"advantage": "gae", "gae_lambda": 1.0, "discount": 1.0, "normalize_std": True},
        {"mask_ratio_low": 0.8, "mask_ratio_high": 1.2},
    ],
    ids=lambda changes: " ".join(map(str, changes.values())),
)
@pytest.mark.parametrize("turn_rewards", [False, True])
def test_forks_change_nothing_for_other_losses_of_token_ratios(
    changes: dict[str, Any], turn_rewards: bool
) -> None:
    num_minibatches = changes.get("num", 1)
    algorithm = an_algorithm(
        aggregation="sequence_mean", **{name: value for name, value in changes.items() if name != "num"}
    )
    groups = episodes(5, turn_rewards=turn_rewards)
    plain = trained(groups, algorithm, num_minibatches=num_minibatches)
    for world_size in (1, 2):
        found = trained(
            with_forks(groups, 5), algorithm, world_size=world_size, num_minibatches=num_minibatches
        )
        assert found.result.losses == pytest.approx(plain.result.losses, abs=rounded)
        assert distance(found.parameters, plain.parameters) < rounded
        assert found.result.statistics == pytest.approx(plain.result.statistics, rel=1e-4, abs=rounded)


@pytest.mark.parametrize("aggregation", aggregations)
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"kl_coefficient": 0.3, "kl_in": "reward", "kl_estimator": "k1"},
        {"advantage": "gae", "gae_lambda": 0.9, "discount": 0.97, "value_coefficient": 0.4},
    ],
    ids=["leave one out", "divergence in reward", "gae"],
)
@pytest.mark.parametrize("turn_rewards", [False, True])
def test_a_step_on_sessions_is_that_of_the_slow_reference(
    aggregation: str, changes: dict[str, Any], turn_rewards: bool
) -> None:
    groups = sessions(1 + turn_rewards, turn_rewards=turn_rewards)
    algorithm = an_algorithm(aggregation=aggregation, **changes)
    policy = RecurrentPolicy()
    loss = slow_loss(groups, algorithm, policy)
    gradients = torch.autograd.grad(loss, list(policy.parameters()), allow_unused=True)
    expected = torch.cat(
        [
            (parameter - (0.0 if gradient is None else gradient)).flatten()
            for parameter, gradient in zip(policy.parameters(), gradients, strict=True)
        ]
    )
    for world_size, packing in ((1, False), (2, True)):
        found = trained(groups, algorithm, world_size=world_size, packing=packing)
        assert found.result.losses == pytest.approx([loss.item()], abs=rounded)
        assert distance(found.parameters, expected) < 10 * rounded


def as_samples_of_their_own(group: Sequence[Sample]) -> list[Sample]:
    """What a reader makes of a group who knows no forks: every sequence a sample with the reward of the whole."""
    found: list[Sample] = []
    for sample in group:
        for row in sample.rows():
            alone = replace(
                sample,
                sample_id=sample_id(sample.group_id, len(found), 0),
                replica=len(found),
                prompt_token_ids=row.prompt_token_ids,
                token_ids=row.token_ids,
                behaviour_logprobs=row.behaviour_logprobs,
                loss_mask=row.loss_mask,
                segments=row.segments,
                forks=(),
                turns=(),
            )
            found.append(alone)
    return found


@pytest.mark.parametrize("aggregation", aggregations)
@pytest.mark.parametrize("advantage", ["leave_one_out", "return"])
def test_a_reader_that_takes_sequences_for_samples_differs_where_it_must(
    aggregation: str, advantage: str
) -> None:
    """Only the mean over tokens, with nothing to compare a reward with, does not ask what is a sample."""
    groups = with_forks(episodes(1), 1)
    algorithm = an_algorithm(aggregation=aggregation, advantage=advantage)
    right = trained(groups, algorithm)
    wrong = trained([as_samples_of_their_own(group) for group in groups], algorithm)
    is_same = distance(right.parameters, wrong.parameters) < 1e-12
    assert is_same is ((aggregation, advantage) == ("token_mean", "return"))
    if not is_same:
        assert distance(right.parameters, wrong.parameters) > 1e-3


@pytest.mark.parametrize("level", ["sequence", "sequence_mean"])
def test_a_ratio_of_a_whole_sequence_is_the_one_place_where_a_fork_counts(level: str) -> None:
    groups = episodes(2)
    algorithm = an_algorithm(ratio_level=level)
    plain, found = trained(groups, algorithm), trained(with_forks(groups, 2), algorithm)
    assert distance(plain.parameters, found.parameters) > 1e-4


def test_positions_number_sequences_by_sample_and_ranks_share_the_sequences_of_a_sample() -> None:
    groups = with_forks(episodes(3), 3)
    rows_of = [
        (group, place)
        for group, samples in enumerate(groups)
        for place, sample in enumerate(samples)
        for _ in sample.rows()
    ]
    plan = plan_groups(groups, TrainerConfig(num_minibatches=3, micro_batch_tokens=40), world_size=2, seed=1)
    named = sorted(position for part in plan for position in part.positions)
    assert named == list(range(len(rows_of)))
    for minibatch in range(3):
        parts = [part for part in plan if part.minibatch == minibatch]
        of_groups = {rows_of[place][0] for part in parts for place in part.positions}
        assert len(of_groups) == 1, "a group stays in one minibatch"
    ranks_of: dict[tuple[int, int], set[int]] = {}
    for part in plan:
        for place in part.positions:
            ranks_of.setdefault(rows_of[place], set()).add(part.rank)
    assert {0, 1} in ranks_of.values(), "some sample has sequences on both ranks"
