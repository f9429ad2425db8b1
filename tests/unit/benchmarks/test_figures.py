"""Figures: how they are written and how sure they are."""

from __future__ import annotations

import importlib.util
import json
from statistics import fmean
from typing import TYPE_CHECKING

import pytest

from benchmarks.harness.figures import (
    Figure,
    bootstrap_interval,
    mean_figure,
    ratio_of_means,
    write_figures,
    write_results,
)
from benchmarks.harness.variant import Variant
from benchmarks.scheduling.comparisons import Comparison, queue_comparisons, redundancy_comparisons
from benchmarks.scheduling.figures import figures_of, speed_figures
from benchmarks.scheduling.measure import jobs_of
from benchmarks.scheduling.run_result import RunResult

if TYPE_CHECKING:
    from pathlib import Path


def a_variant(name: str) -> Variant:
    return Variant(name=name, num_groups=2, group_size=2, slots_per_worker=4)


def a_comparison(num_seeds: int = 2) -> Comparison:
    return Comparison(
        name="mode", baseline=a_variant("baseline"), mode=a_variant("mode"), num_seeds=num_seeds
    )


def a_result(seconds: float, ideal_seconds: float) -> RunResult:
    return RunResult(seconds=seconds, ideal_seconds=ideal_seconds, num_tasks=3)


def test_a_file_of_figures_is_a_list_of_objects_with_the_agreed_names(tmp_path: Path) -> None:
    write_figures([Figure(name="a", value=1.5, unit="s", target=1.0, ideal=2.0)], tmp_path / "f.json")
    (found,) = json.loads((tmp_path / "f.json").read_text())
    assert {"name", "value", "unit", "target", "ideal", "higher_is_better"} <= found.keys()
    assert (found["value"], found["higher_is_better"]) == (1.5, True)


def test_results_say_when_where_with_what_and_how_they_were_measured(tmp_path: Path) -> None:
    figure = Figure(name="a", value=1.5, unit="s")
    write_results([figure], tmp_path / "r.json", command="python -m benchmarks.scheduling", seconds=12.34)
    found = json.loads((tmp_path / "r.json").read_text())
    assert found["command"] == "python -m benchmarks.scheduling"
    assert found["seconds"] == 12.3
    assert found["versions"]["kafka"]
    has_confluent = importlib.util.find_spec("confluent_kafka") is not None
    assert ("confluent-kafka" in found["versions"]) == has_confluent
    assert {"date", "machine", "load_average"} <= found.keys()
    assert [each["name"] for each in found["figures"]] == ["a"]


def test_a_figure_says_whether_it_meets_its_target_in_its_own_direction() -> None:
    assert "met" in Figure(name="a", value=2.0, unit="x", target=1.0).line()
    assert "MISSED" in Figure(name="a", value=2.0, unit="s", target=1.0, higher_is_better=False).line()


def test_an_interval_holds_the_statistic_and_narrows_with_more_draws() -> None:
    values = [float(number % 7) for number in range(200)]
    wide, narrow = bootstrap_interval(values[:21], fmean), bootstrap_interval(values, fmean)
    assert wide is not None
    assert narrow is not None
    assert wide[0] < 3.0 < wide[1]
    assert narrow[1] - narrow[0] < wide[1] - wide[0]
    assert bootstrap_interval(values[:3], fmean) is None


def test_the_mean_of_few_draws_has_the_interval_of_student_s_t() -> None:
    few = mean_figure("a", "s", [1.0, 2.0, 3.0])
    # 4.303 standard errors on two degrees of freedom.
    assert (few.value, few.num_draws) == (2.0, 3)
    assert few.interval == pytest.approx((2 - 4.303 / 3**0.5, 2 + 4.303 / 3**0.5), abs=1e-4)
    assert mean_figure("a", "s", [1.0]).interval is None


def test_the_mean_of_many_draws_has_an_interval_by_resampling() -> None:
    many = [float(number % 7) for number in range(20)]
    found = bootstrap_interval(many, fmean)
    assert found is not None
    assert mean_figure("a", "s", many).interval == pytest.approx(found, abs=1e-4)


def test_a_speed_up_is_the_ratio_of_the_mean_times() -> None:
    assert ratio_of_means([(10.0, 1.0), (20.0, 4.0)]) == 6.0


def test_jobs_hold_each_variant_and_workload_once_with_the_modes_of_a_workload_together() -> None:
    comparisons = [*queue_comparisons(4), *redundancy_comparisons(4)]
    jobs = jobs_of(comparisons, seed=3, speed=10.0)
    keys = [(job.number, job.variant.name) for job in jobs]
    assert len(set(keys)) == len(keys)
    assert [number for number, _ in keys] == sorted(number for number, _ in keys)
    wanted = {
        (number, variant.name)
        for comparison in comparisons
        for variant in (comparison.baseline, comparison.mode)
        for number in range(comparison.num_seeds)
    }
    assert set(keys) == wanted


def test_figures_compare_only_workloads_that_both_modes_finished() -> None:
    outcomes = {
        "baseline": {
            0: a_result(40.0, 40.0),
            1: a_result(9.0, 9.0),
        },
        "mode": {0: a_result(25.0, 20.0)},
    }
    figures = {figure.name: figure for figure in figures_of([a_comparison()], outcomes)}
    speedup = figures["scheduling.mode.speedup"]
    assert (speedup.value, speedup.ideal, speedup.num_draws) == (1.6, 2.0, 1)
    assert speedup.target == pytest.approx(1.9)
    assert figures["scheduling.mode.share_of_ideal"].value == pytest.approx(0.8)
    assert figures["scheduling.mode.efficiency"].value == pytest.approx(0.8)
    assert figures["scheduling.baseline.seconds"].value == 40.0


def test_a_comparison_without_finished_workloads_has_no_figures() -> None:
    assert figures_of([a_comparison()], {}) == []


def test_results_name_the_versions_of_modules_whatever_their_distributions_are_called(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    details = {"settings": {"run.num_steps": 20}}
    write_results([], path, command="", seconds=1.0, libraries=["_pytest", "click"], details=details)
    results = json.loads(path.read_text())
    assert results["versions"]["_pytest"] == pytest.__version__
    assert "click" in results["versions"]
    assert results["settings"] == {"run.num_steps": 20}
    assert [file.name for file in tmp_path.iterdir()] == ["results.json"]


def test_times_at_two_speeds_are_compared_by_workload() -> None:
    results = {"mode": {0: a_result(30.0, 0.0), 1: a_result(90.0, 0.0)}, "failed": {}}
    checked = {"mode": {0: a_result(20.0, 0.0)}, "failed": {0: a_result(20.0, 0.0)}}
    (figure,) = speed_figures(results, checked)
    assert (figure.name, figure.value, figure.ideal) == ("scheduling.mode.speed_check", 1.5, 1.0)


def test_workloads_are_numbered_from_0_under_one_seed() -> None:
    jobs = jobs_of(queue_comparisons(4), seed=3, speed=10.0)
    assert {job.seed for job in jobs} == {3}
    assert {job.number for job in jobs} == {0, 1, 2, 3}
