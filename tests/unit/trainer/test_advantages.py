"""Group-relative advantages."""

from __future__ import annotations

import math
from itertools import permutations
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollog.settings.training import AlgorithmConfig
from trainer.step.advantages import (
    advantages_of,
    batch_advantages,
    group_advantages,
    leave_one_out_advantages,
    overlong_penalty,
    std_epsilon,
    turn_advantages,
)


def test_two_of_four_right_gives_plus_and_minus_the_inverse_unbiased_deviation() -> None:
    deviation = math.sqrt(4 * 0.25 / 3)
    expected = 0.5 / (deviation + std_epsilon)
    assert group_advantages([1, 0, 0, 1]) == pytest.approx([expected, -expected, -expected, expected])


def test_without_normalization_the_advantage_is_the_distance_from_the_mean() -> None:
    assert group_advantages([3.0, 1.0, 2.0], normalize_std=False) == pytest.approx([1.0, -1.0, 0.0])


@pytest.mark.parametrize("reward", [0.0, 0.1, 1 / 3, -7.7])
def test_equal_rewards_give_advantages_of_exactly_zero(reward: float) -> None:
    assert group_advantages([reward] * 7).tolist() == [0.0] * 7


def test_a_group_of_one_has_no_advantage() -> None:
    assert group_advantages([0.7]).tolist() == [0.0]


def test_advantages_do_not_depend_on_the_order_of_the_group() -> None:
    rewards = [0.1, 0.7, 0.3, 1e-3]
    expected = dict(zip(rewards, group_advantages(rewards).tolist(), strict=True))
    for order in permutations(rewards):
        assert group_advantages(order).tolist() == [expected[reward] for reward in order]


def test_advantages_do_not_change_with_the_scale_and_the_zero_of_rewards() -> None:
    plain = group_advantages([0.0, 1.0, 1.0, 0.5])
    assert group_advantages([5.0, 105.0, 105.0, 55.0]) == pytest.approx(plain, rel=1e-4)


@pytest.mark.parametrize("reward", [math.nan, math.inf])
def test_rewards_that_are_no_numbers_are_refused(reward: float) -> None:
    with pytest.raises(ValueError, match="finite"):
        group_advantages([0.0, reward])


def test_an_empty_group_is_refused() -> None:
    with pytest.raises(ValueError, match="without rewards"):
        group_advantages([])


def test_advantages_are_float32() -> None:
    assert group_advantages([0.0, 1.0]).dtype == np.dtype("<f4")


def test_leave_one_out_compares_each_reward_with_the_mean_of_the_others() -> None:
    rewards = [1.0, 0.0, 0.5, 0.25]
    expected = [reward - (sum(rewards) - reward) / 3 for reward in rewards]
    assert leave_one_out_advantages(rewards) == pytest.approx(expected)
    assert leave_one_out_advantages([0.7]).tolist() == [0.0]


def test_a_batch_is_compared_with_its_own_mean_and_deviation() -> None:
    groups = [[1.0, 0.0], [1.0, 1.0, 0.0]]
    mean, deviation = 0.6, math.sqrt((3 * 0.16 + 2 * 0.36) / 4)
    found = batch_advantages(groups)
    assert [len(group) for group in found] == [2, 3]
    assert np.concatenate(found) == pytest.approx(
        [(reward - mean) / (deviation + std_epsilon) for group in groups for reward in group]
    )
    assert batch_advantages([]) == []


@pytest.mark.parametrize("reward", [0.1, 1 / 3])
def test_a_batch_of_equal_rewards_has_advantages_of_exactly_zero(reward: float) -> None:
    assert [each.tolist() for each in batch_advantages([[reward] * 3, [reward]])] == [[0.0] * 3, [0.0]]


groups = [[1.0, 0.0, 0.0], [0.5, 0.25, 0.0]]
of_settings: dict[str, tuple[AlgorithmConfig, list[float]]] = {
    "group": (AlgorithmConfig(normalize_std=False), [2 / 3, -1 / 3, -1 / 3, 0.25, 0.0, -0.25]),
    "leave_one_out": (AlgorithmConfig(type="rloo"), [1.0, -0.5, -0.5, 0.375, 0.0, -0.375]),
    "return": (AlgorithmConfig(type="policy_gradient"), [1.0, 0.0, 0.0, 0.5, 0.25, 0.0]),
    "batch": (
        AlgorithmConfig(type="ppo", normalize_std=False),
        [reward - 1.75 / 6 for reward in (1.0, 0.0, 0.0, 0.5, 0.25, 0.0)],
    ),
    "group_batch": (
        AlgorithmConfig(advantage="group_batch"),
        [
            each / (math.sqrt((2 / 3 + 0.125) / 5) + std_epsilon)
            for each in (2 / 3, -1 / 3, -1 / 3, 0.25, 0.0, -0.25)
        ],
    ),
}


@pytest.mark.parametrize(("algorithm", "expected"), of_settings.values(), ids=of_settings.keys())
def test_settings_say_what_a_reward_is_compared_with(
    algorithm: AlgorithmConfig, expected: list[float]
) -> None:
    found = advantages_of(groups, algorithm)
    assert [len(each) for each in found] == [3, 3]
    assert np.concatenate(found) == pytest.approx(expected, abs=1e-6)
    assert {each.dtype for each in found} == {np.dtype("<f4")}


def test_the_default_gives_what_groups_alone_give_bit_for_bit() -> None:
    found = advantages_of(groups, AlgorithmConfig())
    assert [each.tolist() for each in found] == [group_advantages(each).tolist() for each in groups]


@given(
    st.lists(st.lists(st.floats(-3, 3, width=16), min_size=2, max_size=5), min_size=1, max_size=4),
    st.sampled_from(["group", "leave_one_out", "batch", "group_batch"]),
)
def test_with_a_baseline_advantages_add_up_to_zero_and_a_higher_reward_is_never_worth_less(
    groups: list[list[float]], advantage: Any
) -> None:
    algorithm = AlgorithmConfig(advantage=advantage, normalize_std=False)
    found = advantages_of(groups, algorithm)
    assert np.concatenate(found).sum(dtype=np.float64) == pytest.approx(0.0, abs=1e-4)
    for rewards, advantages in zip(groups, found, strict=True):
        ordered = advantages[np.argsort(rewards, kind="stable")]
        assert (np.diff(ordered) >= -1e-6).all()


@pytest.mark.parametrize(
    ("num_tokens", "expected"), [(1, 0.0), (80, 0.0), (85, 0.5), (90, 1.0), (100, 2.0), (120, 2.0)]
)
def test_over_long_responses_lose_more_and_more(num_tokens: int, expected: float) -> None:
    lost = overlong_penalty(num_tokens, max_tokens=100, share=0.2, penalty=2.0)
    assert lost == pytest.approx(expected)
    assert overlong_penalty(num_tokens, max_tokens=100, share=0.0, penalty=2.0) == 0.0


def test_turns_of_a_group_are_compared_with_each_other_and_get_what_comes_after_them_too() -> None:
    group = [[1.0, 0.0], [0.0], [1.0, 1.0, 0.0]]
    mean = 0.5
    found = turn_advantages([group], AlgorithmConfig(normalize_std=False))
    assert found == [
        [(1.0 - 2 * mean, -mean), (-mean,), (2.0 - 3 * mean, 1.0 - 2 * mean, -mean)],
    ]
    every = np.array([reward for turns in group for reward in turns])
    deviation = every.std(ddof=1) + std_epsilon
    assert turn_advantages([group], AlgorithmConfig())[0][2] == pytest.approx(
        [(2.0 - 3 * mean) / deviation, (1.0 - 2 * mean) / deviation, -mean / deviation]
    )


@pytest.mark.parametrize("advantage", ["group", "leave_one_out", "batch", "group_batch", "return"])
def test_single_turns_are_whole_responses(advantage: Any) -> None:
    algorithm = AlgorithmConfig(advantage=advantage, normalize_std=False)
    groups = [[0.1, 0.7, 0.3], [1 / 3, 0.9]]
    found = turn_advantages([[[reward] for reward in group] for group in groups], algorithm)
    assert [[turns[0] for turns in group] for group in found] == [
        each.tolist() for each in advantages_of(groups, algorithm)
    ]


def test_returns_of_turns_are_sums_to_the_end() -> None:
    algorithm = AlgorithmConfig(advantage="return", normalize_std=False)
    assert turn_advantages([[[1.0, -2.0, 4.0]]], algorithm) == [[(3.0, 2.0, 4.0)]]


def test_a_sample_without_a_turn_is_refused() -> None:
    with pytest.raises(ValueError, match="without a turn"):
        turn_advantages([[[1.0], []]], AlgorithmConfig())
