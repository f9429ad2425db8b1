"""The ideal of training runs, against cases computed by hand, and what is compared with it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, cast

import pytest

from benchmarks.scheduling.asynchrony import (
    group_size,
    num_devices,
    num_groups,
    train_devices,
    training_comparisons,
)
from benchmarks.scheduling.ideal_training import TrainingModel, TrainingRun, training_step_seconds
from rollog.settings.groups import FreshnessConfig

if TYPE_CHECKING:
    from benchmarks.harness.workload import SeededWorkload


class Written:
    """Durations by group: the given ones, then 1 second for each rollout."""

    def __init__(self, *seconds: float) -> None:
        self._seconds = seconds

    def seconds(self, group: int, replica: int) -> float:
        del replica
        return self._seconds[group] if group < len(self._seconds) else 1.0


def step_ends(alpha: float | Literal["auto"], *seconds: float, **changes: object) -> list[float]:
    values: dict[str, object] = {
        "num_groups": 1,
        "group_size": 1,
        "num_steps": 3,
        "num_slots": 1,
        "train_seconds": 2.0,
        "freshness": FreshnessConfig(alpha=alpha),
    }
    run = TrainingRun(**(values | changes))  # type: ignore[arg-type]
    return TrainingModel(cast("SeededWorkload", Written(*seconds)), run).step_ends()


def test_synchronous_steps_take_rollout_and_training_in_turn() -> None:
    assert step_ends(0.0) == [3.0, 6.0, 9.0]


def test_asynchronous_steps_take_the_longer_of_the_two() -> None:
    assert step_ends(1.0) == [3.0, 5.0, 7.0]


def test_a_group_that_went_stale_is_made_again_and_waited_for() -> None:
    # Group 0, begun under version 0, can only end stale from version 2 on: it is taken back at 4 and made again until
    # 9. Version 3 may still be made at 6, version 4 waits for it.
    assert step_ends(1.0, 5.0, num_slots=2, train_seconds=1.0, num_steps=4) == [2.0, 4.0, 6.0, 10.0]


def test_a_complete_group_that_ages_is_made_again_but_not_waited_for() -> None:
    # Group 1, begun under version 0, ends at 4.5, while group 2 is trained: at 6, under version 2, it is complete and
    # too old. Made again from 6 to 10.5 it does not keep group 4, ready at 10, from being trained before it.
    ends = step_ends(1.0, 1.0, 4.5, num_slots=2, num_steps=5)
    assert ends[:4] == [3.0, 6.0, 9.0, 12.0]


def test_alpha_under_control_rises_while_steps_wait() -> None:
    fixed = step_ends(1.0, num_steps=12, num_groups=4, num_slots=4, train_seconds=0.1)
    auto = step_ends("auto", num_steps=12, num_groups=4, num_slots=4, train_seconds=0.1)
    assert auto[-1] <= fixed[-1]


def test_the_mean_is_taken_from_the_first_step_to_the_last() -> None:
    run = TrainingRun(
        num_groups=1,
        group_size=1,
        num_steps=3,
        num_slots=1,
        train_seconds=2.0,
        freshness=FreshnessConfig(alpha=1.0),
    )
    assert training_step_seconds(cast("SeededWorkload", Written()), run) == pytest.approx(2.0)


def test_every_mode_of_training_has_the_same_devices_and_the_same_work() -> None:
    comparisons = training_comparisons(20)
    modes = {each.name: each.mode for each in comparisons}
    turns = comparisons[0].baseline
    assert turns.slots_per_worker == num_devices
    for alpha in (0.0, 0.5, 1.0, 2.0, 4.0, 8.0):
        mode = modes[f"training.alpha_{alpha:g}"]
        assert mode.slots_per_worker == num_devices - train_devices[alpha]
        assert mode.train_seconds == pytest.approx(turns.train_seconds * num_devices / train_devices[alpha])
        assert mode.num_groups * mode.group_size == num_groups * group_size == 64
    assert modes["training.alpha_2.over_alpha_0"].alpha == 2.0
