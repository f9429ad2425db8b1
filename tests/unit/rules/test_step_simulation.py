"""The simulated step, and how near the prediction comes to it."""

from __future__ import annotations

import math
import random

import pytest

from rollog.planning.sizing import Workload, best_device_split, split_at
from rollog.planning.step_simulation import best_simulated_split, simulated_step_seconds


def lognormal(num: int, *, cv: float, cap: float, seed: int = 1) -> list[float]:
    """Durations with median and spread of a lognormal of mean 1, cut off at `cap`."""
    source, variance = random.Random(seed), math.log(1 + cv * cv)
    return [min(cap, source.lognormvariate(-variance / 2, math.sqrt(variance))) for _ in range(num)]


def a_workload(durations: list[float], **changes: float) -> Workload:
    values: dict[str, float] = {
        "mean_seconds": sum(durations) / len(durations),
        "max_seconds": max(durations),
        "train_seconds_per_sample": 1 / 3,
        "batch": 64,
        "alpha": 2.0,
        "num_devices": 16,
    }
    return Workload(**(values | changes))  # type: ignore[arg-type]  # batch and devices are whole


def test_synchronous_steps_are_generating_and_training_in_turn() -> None:
    workload = a_workload([2.0], alpha=0.0, batch=4, num_devices=3)

    # Two slots make four rollouts of 2 s in 4 s, one device trains on them for 4 / 3 s.
    assert simulated_step_seconds([2.0], workload, 1) == pytest.approx(4 + 4 / 3)


def test_the_longer_stage_sets_the_pace_where_alpha_lets_them_overlap() -> None:
    slow_trainer = a_workload([2.0], alpha=1.0, batch=4, num_devices=3, train_seconds_per_sample=3.0)
    fast_trainer = a_workload([2.0], alpha=1.0, batch=4, num_devices=3, train_seconds_per_sample=0.01)

    assert simulated_step_seconds([2.0], slow_trainer, 1) == pytest.approx(12)
    assert simulated_step_seconds([2.0], fast_trainer, 1) == pytest.approx(4)


def test_rollouts_that_are_filtered_are_generated_too() -> None:
    workload = a_workload([2.0], alpha=0.0, batch=4, num_devices=3, rollouts_per_sample=1.5)

    assert simulated_step_seconds([2.0], workload, 1) == pytest.approx(6 + 4 / 3)


@pytest.mark.parametrize("cv", [0.5, 1.0])
@pytest.mark.parametrize("alpha", [0.0, 0.5, 1.0, 2.0, 4.0])
@pytest.mark.parametrize(("batch", "num_devices"), [(64, 64), (64, 16), (256, 16)])
def test_no_simulated_step_is_over_the_bound_or_under_the_trainer(
    cv: float, alpha: float, batch: int, num_devices: int
) -> None:
    durations = lognormal(4001, cv=cv, cap=8.0)
    workload = a_workload(durations, alpha=alpha, batch=batch, num_devices=num_devices)

    for num_train_devices in {1, num_devices // 4, best_device_split(workload).num_train_devices}:
        split = split_at(workload, num_train_devices / num_devices)
        simulated = simulated_step_seconds(durations, workload, num_train_devices)
        assert split.train_seconds <= simulated * (1 + 1e-9)
        assert (
            simulated <= split.step_seconds_at_most * 1.02
        )  # the draws of 50 steps have not quite the mean of all


@pytest.mark.parametrize("alpha", [1.0, 2.0, 4.0, 8.0])
@pytest.mark.parametrize(
    ("batch", "num_devices", "train_seconds"),
    [(256, 16, 1 / 3), (64, 16, 1.0), (1024, 32, 0.3), (64, 64, 1 / 3)],
)
def test_the_predicted_asynchronous_step_is_within_ten_percent_of_the_simulated_one(
    alpha: float, batch: int, num_devices: int, train_seconds: float
) -> None:
    durations = lognormal(4001, cv=0.5, cap=4.0)
    workload = a_workload(
        durations, alpha=alpha, batch=batch, num_devices=num_devices, train_seconds_per_sample=train_seconds
    )
    found = best_device_split(workload)

    simulated = simulated_step_seconds(durations, workload, found.num_train_devices)

    assert simulated == pytest.approx(found.split.step_seconds, rel=0.1)


@pytest.mark.parametrize("num_devices", [3, 8, 40])
def test_the_best_simulated_split_is_found_without_trying_all(num_devices: int) -> None:
    durations = lognormal(1001, cv=1.0, cap=8.0)
    workload = a_workload(durations, num_devices=num_devices, batch=32)

    found, seconds = best_simulated_split(durations, workload)

    assert seconds == simulated_step_seconds(durations, workload, found)
    tried = (simulated_step_seconds(durations, workload, number) for number in range(1, num_devices))
    assert seconds == pytest.approx(min(tried), rel=0.01)


def test_where_few_rollouts_have_a_long_tail_the_bound_spares_too_many_devices_for_it() -> None:
    durations = lognormal(4001, cv=1.0, cap=8.0)
    workload = a_workload(durations, num_devices=64)
    planned = best_device_split(workload)

    found, seconds = best_simulated_split(durations, workload)

    assert found > planned.num_train_devices
    assert seconds < planned.split.step_seconds / 2


def test_without_durations_nothing_is_simulated() -> None:
    with pytest.raises(ValueError, match="at least one rollout"):
        simulated_step_seconds([], a_workload([1.0]), 1)
