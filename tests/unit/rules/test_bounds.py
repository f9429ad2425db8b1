"""Freshness, admission, filtering and limits: the small rules."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from support.builders import a_header, freshness_config, groups_config

from rollog.rules.admission import max_open_groups
from rollog.rules.filtering import filter_reason
from rollog.rules.freshness import is_stale, lag_bound, lag_quota, min_version
from rollog.rules.limits import ReplicaTally, is_exhausted

if TYPE_CHECKING:
    from rollog.rules.headers import SampleHeader


@pytest.mark.parametrize(("alpha", "bound", "quota"), [(0, 0, None), (1, 1, None), (0.5, 1, 2), (2.25, 3, 1)])
def test_alpha_gives_the_lag_bound_and_the_quota_of_the_largest_lag(
    alpha: float, bound: int, quota: int | None
) -> None:
    assert lag_bound(alpha) == bound
    assert lag_quota(alpha, groups_per_batch=4) == quota


def test_lag_at_the_bound_is_fresh() -> None:
    assert not is_stale(version=3, first_version=2, alpha=0.5)
    assert is_stale(version=4, first_version=2, alpha=0.5)


@pytest.mark.parametrize(
    ("ahead", "alpha", "expected"), [(0, 0, 5), (0, 1, 4), (4, 1, 5), (0, 2.5, 3), (100, 0, 5), (0, 9, 0)]
)
def test_min_version_is_when_the_group_will_be_consumed_less_what_alpha_forgives(
    ahead: int, alpha: float, expected: int
) -> None:
    assert min_version(5, ahead, groups_per_batch=4, alpha=alpha, protected=False) == expected


def test_rollouts_of_protected_groups_begin_with_the_version_at_issue() -> None:
    assert min_version(5, 0, groups_per_batch=4, alpha=2, protected=True) == 5


@pytest.mark.parametrize(
    ("alpha", "steps_left", "redundant", "filtered", "expected"),
    [
        (0, 9, 0, 0, 4),
        (1, 9, 0, 0, 8),
        (0.5, 9, 0, 0, 6),
        (2, 1, 0, 0, 4),
        (1, 9, 3, 2, 13),
        (1, 9, 3, 99, 22),
        (1, 0, 3, 2, 0),
    ],
)
def test_open_groups_are_bounded_by_the_queue_and_by_what_the_run_still_needs(
    alpha: float, steps_left: int, redundant: int, filtered: int, expected: int
) -> None:
    bound = max_open_groups(
        alpha=alpha,
        groups_per_batch=4,
        steps_left=steps_left,
        redundant_groups=redundant,
        num_early_filtered=filtered,
    )
    assert bound == expected


def members(*rewards: float, num_tokens: tuple[int, ...] = (), num_truncated: int = 0) -> list[SampleHeader]:
    lengths = num_tokens or (3,) * len(rewards)
    return [
        a_header(
            0,
            replica,
            offset=replica,
            reward=reward,
            num_tokens=lengths[replica],
            is_truncated=replica < num_truncated,
        )
        for replica, reward in enumerate(rewards)
    ]


def test_equal_rewards_are_no_signal_unless_the_filter_is_off() -> None:
    assert filter_reason(members(1.0, 1.0), groups_config()) == "zero_signal"
    assert filter_reason(members(1.0, 0.0), groups_config()) is None
    assert filter_reason(members(1.0, 1.0), groups_config(filter_zero_signal=False)) is None


@pytest.mark.parametrize(
    ("num_passed", "reason"), [(0, "too_hard"), (1, None), (2, None), (3, "too_easy"), (4, "too_easy")]
)
def test_groups_of_which_too_few_or_too_many_pass_are_too_hard_or_too_easy(
    num_passed: int, reason: str | None
) -> None:
    groups = groups_config(
        group_size=4, filter_zero_signal=False, pass_reward=0.6, pass_rate_bounds=(0.25, 0.5)
    )
    rewards = [0.6] * num_passed + [0.59] * (4 - num_passed)
    assert filter_reason(members(*rewards), groups) == reason


@pytest.mark.parametrize("size", range(1, 40))
def test_a_pass_rate_on_a_bound_is_inside_for_every_size_of_group(size: int) -> None:
    for num_passed in range(size):
        groups = groups_config(
            group_size=size, filter_zero_signal=False, pass_rate_bounds=(num_passed / size, 1.0)
        )
        rewards = [1.0] * num_passed + [0.0] * (size - num_passed)
        assert filter_reason(members(*rewards), groups) is None


@pytest.mark.parametrize(
    ("lengths", "reason"), [((3, 4), "too_short"), ((3, 5), None), ((0, 16), None), ((8, 9), "too_long")]
)
def test_groups_whose_mean_length_is_out_of_bounds_are_too_short_or_too_long(
    lengths: tuple[int, ...], reason: str | None
) -> None:
    groups = groups_config(response_tokens_mean_bounds=(4, 8))
    assert filter_reason(members(0.0, 1.0, num_tokens=lengths), groups) == reason


@pytest.mark.parametrize(
    ("share", "num_truncated", "reason"),
    [(None, 4, None), (0.0, 0, None), (0.0, 1, "truncated"), (0.5, 2, None), (0.5, 3, "truncated")],
)
def test_groups_of_which_too_many_responses_were_cut_off_are_filtered(
    share: float | None, num_truncated: int, reason: str | None
) -> None:
    groups = groups_config(group_size=4, max_truncated_share=share)
    assert filter_reason(members(0.0, 1.0, 0.0, 1.0, num_truncated=num_truncated), groups) == reason


def test_the_first_filter_that_a_group_does_not_pass_gives_the_reason() -> None:
    everything = groups_config(
        reward_mean_bounds=(0.0, 0.4),
        pass_rate_bounds=(0.0, 0.4),
        response_tokens_mean_bounds=(0, 2),
        max_truncated_share=0.0,
    )
    assert filter_reason(members(1.0, 1.0, num_truncated=1), everything) == "zero_signal"
    assert filter_reason(members(0.0, 1.0, num_truncated=1), everything) == "mean_out_of_bounds"
    assert filter_reason(members(0.8, 0.0, num_truncated=1), everything) == "too_long"
    assert filter_reason(members(0.8, 0.0, num_tokens=(1, 1), num_truncated=1), everything) == "truncated"
    assert filter_reason(members(0.8, 0.0, num_tokens=(1, 1)), everything) is None


def test_failed_and_lost_attempts_have_limits_of_their_own_and_stale_ones_none() -> None:
    groups, freshness = groups_config(max_attempts=3, max_lost=5), freshness_config()
    assert not is_exhausted(ReplicaTally(num_failed=2, num_lost=4, num_stale=99), groups, freshness)
    assert is_exhausted(ReplicaTally(num_failed=3), groups, freshness)
    assert is_exhausted(ReplicaTally(num_lost=5), groups, freshness)
    assert is_exhausted(ReplicaTally(num_stale=1), groups, freshness_config(action="drop"))


@pytest.mark.parametrize(
    ("alpha", "num_groups", "quota"), [(1.2, 5, 1), (4.1, 10, 1), (2.3, 10, 3), (0.29, 100, 29)]
)
def test_the_quota_is_exact_for_decimal_alphas(alpha: float, num_groups: int, quota: int) -> None:
    assert lag_quota(alpha, num_groups) == quota
