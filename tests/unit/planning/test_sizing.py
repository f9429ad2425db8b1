"""Bounds on step times and the split of devices, against hand-computed cases and schedules played through."""

from __future__ import annotations

import heapq
import math
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from rollog.planning.sizing import (
    Workload,
    best_device_split,
    best_share,
    completion_bound,
    plan_devices,
    proposition_share,
    proposition_step_seconds,
    split_at,
    with_alpha,
)

seconds = st.floats(0.01, 100)
alphas = st.floats(0, 64)


def a_workload(**changes: Any) -> Workload:
    """a = 3, b = 2, c = 4 / (alpha + 1)."""
    values: dict[str, Any] = {
        "mean_seconds": 3.0,
        "max_seconds": 4.0,
        "train_seconds_per_sample": 2.0,
        "batch": 10,
        "alpha": 1.0,
        "num_devices": 10,
    }
    return Workload(**(values | changes))


@st.composite
def workloads(draw: st.DrawFn) -> Workload:
    mean = draw(seconds)
    return Workload(
        mean_seconds=mean,
        max_seconds=mean * draw(st.floats(1, 20)),
        train_seconds_per_sample=draw(seconds),
        batch=draw(st.integers(1, 2048)),
        alpha=draw(alphas),
        num_devices=draw(st.integers(2, 256)),
        num_epochs=draw(st.integers(1, 4)),
        slots_per_device=draw(st.integers(1, 64)),
        rollouts_per_sample=draw(st.floats(1, 3)),
    )


def test_the_parts_of_a_step_are_what_they_are_by_hand() -> None:
    workload = a_workload(
        num_epochs=2, slots_per_device=5, rollouts_per_sample=1.5, max_seconds=8.0, alpha=3.0
    )

    assert workload.num_rollouts == 15
    assert workload.generating == pytest.approx(15 * 3 / 50)
    assert workload.training == pytest.approx(2 * 10 * 2 / 10)
    assert workload.tail == pytest.approx(8 / 4)


def test_rollouts_in_a_queue_are_done_within_their_share_of_the_slots_and_the_longest() -> None:
    assert completion_bound(64, 16, 20.0, 60.0) == 140.0


def test_the_share_is_the_root_computed_by_hand() -> None:
    # c = 2, a + b + c = 7, b = 2: 2 x^2 - 7 x + 2 = 0 has the roots (7 -+ sqrt(33)) / 4.
    beta = best_share(a_workload())

    assert beta == pytest.approx((7 - math.sqrt(33)) / 4, rel=1e-12)
    split = split_at(a_workload(), beta)
    assert split.step_seconds == pytest.approx(2 / beta, rel=1e-12)


def test_the_other_root_is_no_share() -> None:
    assert (7 + math.sqrt(33)) / 4 > 1


@given(workloads())
def test_the_share_solves_the_equation_and_lies_between_none_and_all(workload: Workload) -> None:
    assume(workload.alpha > 0)
    a, b, c = workload.generating, workload.training, workload.tail
    beta = best_share(workload)

    assert 0 < beta < 1
    assert c * beta**2 - (a + b + c) * beta + b == pytest.approx(0, abs=1e-12 * (a + b + c))


@given(workloads())
def test_both_stages_are_equally_long_at_the_share(workload: Workload) -> None:
    beta = best_share(workload)
    assume(workload.alpha > 0 and 1e-4 < beta < 1 - 1e-4)
    split = split_at(workload, beta)

    assert split.rollout_seconds == pytest.approx(split.train_seconds, rel=1e-9)


@given(workloads(), st.floats(0.001, 0.999))
def test_no_other_share_has_a_shorter_step(workload: Workload, other: float) -> None:
    best = split_at(workload, best_share(workload))

    assert best.step_seconds <= split_at(workload, other).step_seconds * (1 + 1e-9)


def test_proposition_2_by_hand() -> None:
    # a = 3, b = 2, c = 2.
    assert proposition_share(a_workload()) == pytest.approx(2 / 7)
    assert proposition_step_seconds(a_workload()) == 7


@given(workloads())
def test_the_equation_is_never_above_proposition_2_and_gives_the_trainer_no_fewer_devices(
    workload: Workload,
) -> None:
    assume(workload.alpha > 0)
    found = split_at(workload, best_share(workload))

    assert found.step_seconds <= proposition_step_seconds(workload) * (1 + 1e-9)
    assert best_share(workload) >= proposition_share(workload) * (1 - 1e-9)
    at_its_share = split_at(workload, proposition_share(workload))
    assert at_its_share.step_seconds <= proposition_step_seconds(workload) * (1 + 1e-9)


@given(workloads(), st.floats(0.001, 64), st.floats(0.001, 64))
def test_more_asynchrony_gives_the_trainer_more_devices_and_shortens_the_step(
    workload: Workload, first: float, second: float
) -> None:
    less, more = (with_alpha(workload, alpha) for alpha in sorted((first, second)))

    assert best_share(less) <= best_share(more) * (1 + 1e-9)
    assert split_at(more, best_share(more)).step_seconds <= split_at(less, best_share(less)).step_seconds * (
        1 + 1e-9
    )


def test_without_end_to_alpha_the_devices_are_shared_by_work_and_none_waits() -> None:
    workload = a_workload(alpha=1e12)

    assert best_share(workload) == pytest.approx(2 / 5)
    assert split_at(workload, best_share(workload)).step_seconds == pytest.approx(3 + 2)


def test_as_alpha_vanishes_the_equation_pays_for_the_whole_longest_rollout() -> None:
    # c = 4: 4 x^2 - 9 x + 2 = 0 has the root 1/4.
    assert best_share(a_workload(alpha=1e-12)) == pytest.approx(0.25)


def test_synchronous_stages_take_turns_and_share_by_the_roots_of_their_work() -> None:
    workload = a_workload(alpha=0.0)
    beta = best_share(workload)
    split = split_at(workload, beta)

    assert beta == pytest.approx(math.sqrt(2) / (math.sqrt(2) + math.sqrt(3)))
    assert split.step_seconds == pytest.approx((math.sqrt(2) + math.sqrt(3)) ** 2 + 4)
    assert split.step_seconds == split.step_seconds_at_most == split.rollout_seconds + split.train_seconds


def test_a_fraction_of_alpha_is_no_whole_batch_to_count_on() -> None:
    split = split_at(a_workload(alpha=0.5), 0.5)

    # a / (1 - beta) = 6, L = 4, b / beta = 4: nothing is sure to overlap.
    assert split.step_seconds == pytest.approx(6 + 4 / 1.5)
    assert split.step_seconds_at_most == pytest.approx(6 + 4 + 4)


@given(workloads(), st.floats(0.001, 0.999))
def test_what_is_predicted_is_never_over_what_is_certain(workload: Workload, beta: float) -> None:
    split = split_at(workload, beta)

    assert split.step_seconds <= split.step_seconds_at_most * (1 + 1e-9)


@given(workloads())
def test_whole_devices_are_the_best_of_all_and_leave_one_on_either_side(workload: Workload) -> None:
    found = best_device_split(workload)
    all_splits = [split_at(workload, n / workload.num_devices) for n in range(1, workload.num_devices)]

    assert found.num_train_devices >= 1
    assert found.num_rollout_devices >= 1
    assert found.num_train_devices + found.num_rollout_devices == workload.num_devices
    shortest = min(split.step_seconds for split in all_splits)
    assert found.split.step_seconds == pytest.approx(shortest, rel=1e-9)


def test_two_devices_are_one_each() -> None:
    found = best_device_split(a_workload(num_devices=2, train_seconds_per_sample=1e-6))

    assert (found.num_train_devices, found.num_rollout_devices) == (1, 1)


def test_a_plan_compares_with_devices_that_take_turns() -> None:
    plan = plan_devices(a_workload())

    assert plan.completion_seconds == 3 + 4
    assert plan.turns_seconds == 3 + 4 + 2
    assert plan.synchronous.split.step_seconds >= plan.turns_seconds
    assert plan.speedup == pytest.approx(9 / plan.whole.split.step_seconds)
    assert plan.speedup_limit == pytest.approx(9 / 5)


@given(st.lists(seconds, min_size=1, max_size=60), st.integers(1, 20))
def test_no_queue_takes_longer_than_the_bound(durations: list[float], num_slots: int) -> None:
    free_at = [0.0] * num_slots
    for duration in durations:
        heapq.heapreplace(free_at, free_at[0] + duration)

    mean = sum(durations) / len(durations)
    assert max(free_at) <= completion_bound(len(durations), num_slots, mean, max(durations)) * (1 + 1e-12)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"mean_seconds": 0.0}, "mean_seconds = 0 must be a finite number, above 0"),
        ({"max_seconds": math.inf}, "max_seconds = inf"),
        ({"max_seconds": 2.0}, "max_seconds = 2 is below mean_seconds = 3"),
        ({"train_seconds_per_sample": -1.0}, "train_seconds_per_sample = -1"),
        ({"train_seconds_per_sample": math.nan}, "train_seconds_per_sample = nan"),
        ({"batch": 0}, "batch = 0 must be a finite number, at least 1"),
        ({"num_epochs": 0}, "num_epochs = 0"),
        ({"group_size": 0}, "group_size = 0"),
        ({"slots_per_device": 0}, "slots_per_device = 0"),
        ({"rollouts_per_sample": 0.5}, "rollouts_per_sample = 0.5"),
        ({"alpha": -0.5}, "alpha = -0.5 must be a finite number, at least 0"),
        ({"num_devices": 1}, "num_devices = 1 cannot be shared out"),
    ],
)
def test_figures_that_no_run_can_have_are_refused_by_name(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=r"must be|cannot be|is below") as error:
        a_workload(**changes)

    assert said in str(error.value)
