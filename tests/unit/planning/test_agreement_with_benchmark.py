"""The plan's play of the protocol beside the asynchrony benchmark: its own simulator and its committed figures."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import fmean
from typing import cast

import pytest

from benchmarks.harness.workload import SeededWorkload
from benchmarks.scheduling.asynchrony import (
    group_size,
    num_devices,
    num_groups,
    num_steps,
    train_devices,
    training_comparisons,
)
from benchmarks.scheduling.ideal import ideal_seconds as variant_ideal_seconds
from benchmarks.scheduling.ideal_training import TrainingRun, training_step_seconds
from rollog.planning.advice import advise, synthetic_groups
from rollog.planning.protocol_simulation import GroupRules, ProtocolRun, step_ends
from rollog.planning.sizing import Workload
from rollog.planning.split_search import SplitPlayer
from rollog.settings.groups import FreshnessConfig

results = Path(__file__).parents[3] / "benchmarks" / "scheduling" / "results" / "asynchrony.json"
alphas = tuple(train_devices)
mean_seconds = 20.0
train_seconds_per_sample = mean_seconds / 3


def a_seeded_workload(
    seed: int, *, number: int = 0, variation: float = 1.0, longest_seconds: float = 160.0
) -> SeededWorkload:
    """Durations with a mean of about 20 s; the default is what the benchmark measures."""
    return SeededWorkload(
        seed=seed,
        number=number,
        median_seconds=mean_seconds / (1 + variation**2) ** 0.5,
        variation=variation,
        longest_seconds=longest_seconds,
    )


def recorded(draw: SeededWorkload) -> list[list[float]]:
    return [
        [draw.seconds(group, replica) for replica in range(group_size)]
        for group in range(num_steps * num_groups)
    ]


def a_workload(alpha: float, groups: list[list[float]], **changes: float) -> Workload:
    durations = [seconds for group in groups for seconds in group]
    values: dict[str, float] = {
        "mean_seconds": fmean(durations),
        "max_seconds": max(durations),
        "train_seconds_per_sample": train_seconds_per_sample,
        "batch": num_groups * group_size,
        "group_size": group_size,
        "alpha": alpha,
        "num_devices": num_devices,
    }
    return Workload(**(values | changes))  # type: ignore[arg-type]  # whole numbers where they must be


class Written:
    """A draw whose durations are looked up."""

    def __init__(self, groups: list[list[float]]) -> None:
        self._groups = groups

    def seconds(self, group: int, replica: int) -> float:
        return self._groups[group][replica]


def ideal_seconds(
    groups: list[list[float]],
    alpha: float,
    num_train_devices: int,
    *,
    train_seconds: float = train_seconds_per_sample,
    steps: int = num_steps,
) -> float:
    """The mean step of the benchmark's simulator, from the first step to the last."""
    run = TrainingRun(
        num_groups=num_groups,
        group_size=group_size,
        num_steps=steps,
        num_slots=num_devices - num_train_devices,
        train_seconds=num_groups * group_size * train_seconds / num_train_devices,
        freshness=FreshnessConfig(alpha=alpha),
    )
    return training_step_seconds(cast("SeededWorkload", Written(groups)), run)


def played_seconds(groups: list[list[float]], alpha: float, num_train_devices: int) -> float:
    """The same of the plan's play."""
    run = ProtocolRun(
        rules=GroupRules(),
        groups_per_batch=num_groups,
        group_size=group_size,
        alpha=alpha,
        num_slots=num_devices - num_train_devices,
        train_seconds=num_groups * group_size * train_seconds_per_sample / num_train_devices,
        num_steps=num_steps,
    )
    ends = step_ends(groups, run, num_steps)
    return (ends[-1] - ends[0]) / (num_steps - 1)


@pytest.mark.parametrize("alpha", alphas)
def test_both_simulators_play_the_same_steps(alpha: float) -> None:
    groups = recorded(a_seeded_workload(1))
    for num_train_devices in (6, *sorted(set(train_devices.values())), 40):
        ideal = ideal_seconds(groups, alpha, num_train_devices)
        played = played_seconds(groups, alpha, num_train_devices)
        assert played == pytest.approx(ideal, rel=0.001), num_train_devices


def committed(alpha: float) -> dict[str, float]:
    """The figure of this alpha: `value` is measured, `ideal` what the benchmark's simulator says, over `num_draws`."""
    name = f"scheduling.training.alpha_{alpha:g}.seconds"
    figures = json.loads(results.read_text())["figures"]
    found: dict[str, float] = next(figure for figure in figures if figure["name"] == name)
    return found


def predicted_seconds(alpha: float, number: int) -> float:
    """What the plan says of workload `number` of the benchmark."""
    groups = recorded(a_seeded_workload(0, number=number))
    player = SplitPlayer(groups, a_workload(alpha, groups), GroupRules())
    return player.at(train_devices[alpha]).step_seconds


@pytest.mark.parametrize("alpha", alphas)
def test_the_measured_steps_are_predicted_within_ten_percent(alpha: float) -> None:
    figure = committed(alpha)

    predicted = fmean(predicted_seconds(alpha, number) for number in range(int(figure["num_draws"])))

    assert predicted == pytest.approx(figure["value"], rel=0.1)


@pytest.mark.parametrize("alpha", alphas)
def test_the_committed_figures_are_of_the_splits_that_the_benchmark_names(alpha: float) -> None:
    mode = next(each.mode for each in training_comparisons(20) if each.name == f"training.alpha_{alpha:g}")
    figure = committed(alpha)

    assert mode.slots_per_worker == num_devices - train_devices[alpha]
    ideals = [
        variant_ideal_seconds(mode, mode.workload(0, number)) for number in range(int(figure["num_draws"]))
    ]
    assert fmean(ideals) == pytest.approx(figure["ideal"], rel=0.1)


def test_the_splits_of_the_benchmark_are_near_the_advised_ones() -> None:
    groups = recorded(a_seeded_workload(0))
    played = advise(groups, a_workload(1.0, groups), alphas, rules=GroupRules())
    for alpha, advice in played.by_alpha.items():
        player = SplitPlayer(groups, a_workload(alpha, groups), GroupRules())
        measured = player.at(train_devices[alpha]).step_seconds
        assert measured <= 1.05 * advice.advised.step_seconds, alpha


@pytest.mark.parametrize(
    ("variation", "longest_seconds", "train_seconds", "alpha"),
    [
        (1.0, 160.0, 20 / 3, 0.0),
        pytest.param(1.0, 160.0, 20 / 3, 1.0, marks=pytest.mark.slow),
        pytest.param(1.0, 160.0, 20 / 3, 4.0, marks=pytest.mark.slow),
        (0.5, 80.0, 2.0, 2.0),
        (1.5, 240.0, 2.0, 1.0),
        (1.5, 240.0, 20.0, 4.0),
    ],
)
def test_from_mean_and_maximum_alone_the_advice_costs_at_most_ten_percent(
    variation: float, longest_seconds: float, train_seconds: float, alpha: float
) -> None:
    draws = [
        recorded(a_seeded_workload(seed, variation=variation, longest_seconds=longest_seconds))
        for seed in (11, 12)
    ]
    workload = a_workload(
        alpha, [group for draw in draws for group in draw], train_seconds_per_sample=train_seconds
    )
    rules = GroupRules()
    advised = SplitPlayer(synthetic_groups(workload, rules), workload, rules).best().num_train_devices

    def seconds(num_train_devices: int) -> float:
        return fmean(
            ideal_seconds(groups, alpha, num_train_devices, train_seconds=train_seconds, steps=25)
            for groups in draws
        )

    best = min(seconds(number) for number in (4, 8, 13, 18, 24, 31, 40))
    assert seconds(advised) <= 1.1 * best
