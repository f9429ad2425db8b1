"""Group-relative advantages."""

from __future__ import annotations

import math
from itertools import permutations

import numpy as np
import pytest

from trainer.advantages import group_advantages, std_epsilon


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
