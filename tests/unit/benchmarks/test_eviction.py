"""The rule that evicts prompts, against cases computed by hand, and what is said of it beside rollog's."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import pytest
from click.testing import CliRunner

from benchmarks.scheduling.__main__ import scheduling
from benchmarks.scheduling.evicting_model import EvictingModel
from benchmarks.scheduling.eviction import alphas, eviction_figures
from benchmarks.scheduling.ideal_training import TrainingModel, TrainingRun
from benchmarks.scheduling.parts import parts, played_parts
from rollog.settings.groups import FreshnessConfig

if TYPE_CHECKING:
    from pathlib import Path

    from benchmarks.harness.workload import SeededWorkload


class Written:
    """Durations by group and replica: the given ones, then 1 second for each rollout."""

    def __init__(self, **seconds: float) -> None:
        self._seconds = seconds

    def seconds(self, group: int, replica: int) -> float:
        return self._seconds.get(f"g{group}r{replica}", 1.0)


def a_model(
    kind: type[TrainingModel], *, group_size: int = 1, num_slots: int = 2, **seconds: float
) -> TrainingModel:
    run = TrainingRun(
        num_groups=1,
        group_size=group_size,
        num_steps=5,
        num_slots=num_slots,
        train_seconds=2.0,
        freshness=FreshnessConfig(alpha=1.0),
    )
    return kind(cast("SeededWorkload", Written(**seconds)), run)


@pytest.mark.parametrize("kind", [EvictingModel, TrainingModel])
def test_where_nothing_grows_too_old_both_rules_play_the_same(kind: type[TrainingModel]) -> None:
    model = a_model(kind)
    assert model.step_ends() == [3.0, 5.0, 7.0, 9.0, 11.0]
    assert (model.num_begun, model.num_emptied) == (5, 0)


def test_a_prompt_that_is_too_old_loses_its_fresh_rollouts_as_well() -> None:
    # Of group 1 replica 0 takes long, and replica 1 finds a slot later. rollog makes replica 0 again and keeps what is
    # fresh; evicted, both are made again.
    seconds = {"g1r0": 20.0}
    evicting = a_model(EvictingModel, group_size=2, num_slots=3, **seconds)
    keeping = a_model(TrainingModel, group_size=2, num_slots=3, **seconds)
    evicting.step_ends()
    keeping.step_ends()
    assert evicting.num_emptied > keeping.num_emptied
    assert evicting.num_begun > keeping.num_begun


def test_a_long_prompt_is_evicted_again_and_again_until_training_has_nothing_else() -> None:
    # Group 1 begins at 0, 6 and 12 and is too old at 6 (version 2) and 12 (version 4): steps go on with the others
    # until the run needs only one more prompt.
    model = a_model(EvictingModel, g1r0=9.0)
    assert model.step_ends() == [3.0, 6.0, 9.0, 12.0, 23.0]
    assert model.num_emptied == 2


def test_every_alpha_has_both_rules_and_the_ratio_of_their_steps() -> None:
    figures = {figure.name: figure for figure in eviction_figures(2, 0)}
    assert figures.keys() == {
        f"eviction.alpha_{alpha:g}.{what}"
        for alpha in alphas
        for what in ("step_time", "paper.evicted", "paper.begun", "rollog.evicted", "rollog.begun")
    }
    for figure in figures.values():
        assert figure.num_draws == 2
        assert figure.interval is not None
        assert figure.interval[0] <= figure.value <= figure.interval[1]
    for alpha in alphas:
        assert figures[f"eviction.alpha_{alpha:g}.paper.begun"].value >= 1.0


def test_enough_workloads_for_an_interval_by_student_are_played_by_default() -> None:
    assert 7 <= played_parts["eviction"].num_seeds <= 10
    assert parts["eviction"] is played_parts["eviction"]


def test_a_played_part_needs_no_broker(tmp_path: Path) -> None:
    words = ["--only", "eviction", "--seeds", "1", "--home", str(tmp_path)]
    result = CliRunner().invoke(scheduling, words)
    assert result.exit_code == 0
    assert "eviction.alpha_1.step_time" in result.output
    assert list(tmp_path.iterdir()) == []
