"""The ideal model, against cases computed by hand and the published ideals."""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import fmean
from typing import TYPE_CHECKING, cast

import pytest

from benchmarks.harness.engine_clock import slower_beyond_64
from benchmarks.harness.workload import SeededWorkload
from benchmarks.scheduling.ideal_slots import (
    Batch,
    SlotModel,
    batch_seconds,
    queue_seconds,
    unreplicated_seconds,
)

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass
class Written:
    """A draw with durations by group, written by hand; groups in `failing` do not pass."""

    times: Sequence[Sequence[float]]
    failing: set[int] = field(default_factory=set)

    def seconds(self, group: int, replica: int) -> float:
        return self.times[group][replica]

    def passes(self, group: int) -> bool:
        return group not in self.failing


def written(times: Sequence[Sequence[float]], failing: set[int] | None = None) -> SeededWorkload:
    return cast("SeededWorkload", Written(times, failing or set()))


def ends_of(model: SlotModel) -> list[tuple[int, float]]:
    return [(label, model.now) for label in model.ends()]


def test_what_does_not_fit_waits_for_the_first_free_slot() -> None:
    model = SlotModel(1, 2)
    for label, seconds in enumerate((3.0, 1.0, 1.0)):
        model.submit(label, seconds)
    assert ends_of(model) == [(1, 1.0), (2, 2.0), (0, 3.0)]


def test_work_goes_to_the_worker_with_most_free_slots() -> None:
    model = SlotModel(2, 2)
    for label in range(3):
        model.submit(label, 1.0)
    model.submit(3, 5.0, num_slots=2)
    assert ends_of(model)[-1] == (3, 6.0)


def test_an_order_of_several_slots_holds_them_and_those_behind_it_wait() -> None:
    model = SlotModel(1, 2)
    model.submit(0, 2.0)
    model.submit(1, 3.0, num_slots=2)
    model.submit(2, 1.0)
    assert ends_of(model) == [(0, 2.0), (1, 5.0), (2, 6.0)]


def test_an_order_larger_than_any_worker_takes_an_idle_one() -> None:
    model = SlotModel(1, 2)
    model.submit(0, 2.0, num_slots=5)
    assert ends_of(model) == [(0, 2.0)]


def test_an_engine_may_slow_down_with_its_occupancy() -> None:
    model = SlotModel(1, 2, float)
    model.submit(0, 1.0)
    model.submit(1, 2.0)
    assert ends_of(model) == [(0, 2.0), (1, 3.0)]
    assert [slower_beyond_64(number) for number in (1, 64, 128, 192)] == [1.0, 1.0, 1.25, 1.5]


def test_rounds_wait_for_the_slowest_and_then_for_its_replacement() -> None:
    draw = written([[1, 2], [4, 5], [3, 3]], {0})
    batch = Batch(num_groups=2, group_size=2)
    assert batch_seconds(draw, batch, SlotModel(1, 4)) == 8.0
    assert queue_seconds(draw, batch, SlotModel(1, 4)) == 5.0


def test_with_a_redundant_group_the_first_that_pass_fill_the_batch() -> None:
    draw = written([[1], [9], [2]])
    assert queue_seconds(draw, Batch(num_groups=2, group_size=1), SlotModel(1, 3), redundant_groups=1) == 2.0


def test_without_replication_a_group_holds_its_slots_until_its_longest_ends() -> None:
    draw = written([[1, 9], [1, 1], [1, 1]])
    batch = Batch(num_groups=3, group_size=2)
    assert unreplicated_seconds(draw, batch, SlotModel(1, 2)) == 11.0
    assert queue_seconds(draw, batch, SlotModel(1, 2)) == 9.0


@pytest.mark.parametrize(
    ("pass_rate", "slots", "redundant", "speedup"),
    [(0.7, 64, 16, 2.4), (0.7, 192, 16, 3.7), (0.5, 64, 16, 3.1), (0.5, 192, 16, 4.9), (1.0, 64, 16, 1.3)],
)
def test_the_ideal_of_redundant_prompts_is_the_known_one(
    pass_rate: float, slots: int, redundant: int, speedup: float
) -> None:
    draws = [SeededWorkload(seed=0, number=number, pass_rate=pass_rate) for number in range(100)]
    batch = Batch(num_groups=8, group_size=8)
    rounds = fmean(batch_seconds(draw, batch, SlotModel(1, 64)) for draw in draws)
    queued = fmean(
        queue_seconds(draw, batch, SlotModel(1, slots), redundant_groups=redundant) for draw in draws
    )
    assert rounds / queued == pytest.approx(speedup, rel=0.1)


@pytest.mark.parametrize(
    ("num_groups", "group_size", "num_workers", "speedup"),
    [(16, 32, 4, 1.76), (16, 32, 8, 1.37), (32, 16, 4, 1.60), (32, 16, 8, 1.30)],
)
def test_the_ideal_of_replication_is_the_known_one(
    num_groups: int, group_size: int, num_workers: int, speedup: float
) -> None:
    draws = [SeededWorkload(seed=0, number=number, longest_seconds=160.0) for number in range(10)]
    batch = Batch(num_groups=num_groups, group_size=group_size)
    whole = fmean(unreplicated_seconds(draw, batch, SlotModel(num_workers, 32)) for draw in draws)
    single = fmean(queue_seconds(draw, batch, SlotModel(num_workers, 32)) for draw in draws)
    assert whole / single == pytest.approx(speedup, rel=0.05)
