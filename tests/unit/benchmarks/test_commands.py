"""The commands of the experiments."""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

import click
import pytest
from click.testing import CliRunner

import benchmarks
from benchmarks.agentic.variants import parts as agentic_parts
from benchmarks.catalogue import experiments, listing
from benchmarks.harness.demo_run import as_published
from benchmarks.harness.options import (
    BenchOptions,
    bench_options,
    numbers,
    report,
    report_runs_and_controls,
    run_and_control_options,
)
from benchmarks.learning.__main__ import learning
from benchmarks.learning.measure import what_is_learnt
from benchmarks.scheduling.__main__ import scheduling
from benchmarks.scheduling.parts import parts
from rollog.settings.settings import Settings
from rollog.settings.sources import load_settings

if TYPE_CHECKING:
    from benchmarks.harness.figures import Figure

root = Path(benchmarks.__path__[0])


def command_of(name: str) -> click.Command:
    command: click.Command = getattr(import_module(f"benchmarks.{name}.__main__"), name)
    return command


@pytest.mark.parametrize("name", experiments)
def test_every_experiment_has_help_a_seed_and_a_file_for_its_figures(name: str) -> None:
    result = CliRunner().invoke(command_of(name), ["--help"])
    assert result.exit_code == 0
    assert {"--seed", "--json", "--results"} <= set(result.output.split())


def test_every_folder_is_a_listed_experiment_or_shared() -> None:
    folders = {path.parent.name for path in root.glob("*/__init__.py")}
    assert folders == {*experiments, "harness"}


def test_the_list_names_every_experiment_and_how_to_run_one() -> None:
    lines = listing().splitlines()
    assert all(any(line.startswith(f"{name} ") for line in lines) for name in experiments)
    assert any("-m benchmarks.training" in line for line in lines)


def test_the_list_says_how_long_every_part_takes() -> None:
    assert experiments["scheduling"].minutes_by_part.keys() == parts.keys()
    assert experiments["agentic"].minutes_by_part.keys() == agentic_parts.keys()
    assert all(f"--only {name} (about " in listing() for name in parts)


def test_results_lie_beside_their_experiment_and_say_what_was_measured() -> None:
    for name in experiments:
        for path in (root / name / "results").glob("*.json"):
            results = json.loads(path.read_text(encoding="utf-8"))
            assert {"date", "command", "machine", "versions", "figures"} <= results.keys(), path


def test_parts_that_do_not_exist_are_refused_by_name() -> None:
    result = CliRunner().invoke(scheduling, ["--only", "queue,turbo"])
    assert result.exit_code == 2
    assert "turbo is not known" in result.output
    assert all(name in result.output for name in parts)


def test_the_help_of_seeds_says_which_workloads_they_are() -> None:
    text = " ".join(CliRunner().invoke(scheduling, ["--help"]).output.split())
    assert "numbers 0 to N - 1 of --seed" in text


def test_a_check_at_the_speed_of_the_figures_is_refused() -> None:
    result = CliRunner().invoke(scheduling, ["--speed", "8", "--check-speed", "8"])
    assert result.exit_code == 2
    assert "8 is --speed itself" in result.output


def test_algorithms_and_lags_that_do_not_exist_are_refused_by_name() -> None:
    for option, value, told in (
        ("--algorithms", "grpo,best", "best is not known"),
        ("--lags", "0,-1", "a lag is 0 or more"),
        ("--lags", "0,half", "is not a list of numbers"),
    ):
        result = CliRunner().invoke(learning, [option, value])
        assert result.exit_code == 2
        assert told in result.output


def test_results_hold_the_command_that_asks_for_the_same(tmp_path: Path) -> None:
    @click.command("scaling")
    @click.option("--alphas", callback=numbers(float), default="0,1")
    @click.option("--set", "assignments", multiple=True)
    @click.option("--steps", type=int)
    @bench_options
    def command(
        *, alphas: tuple[float, ...], assignments: tuple[str, ...], steps: int | None, options: BenchOptions
    ) -> None:
        del alphas, assignments, steps
        report([], options)

    path = tmp_path / "results.json"
    words = ["--seed", "3", "--set", "a.b=1", "--set", "c.d=x y", "--results", str(path)]
    assert CliRunner().invoke(command, words).exit_code == 0
    found = json.loads(path.read_text(encoding="utf-8"))
    wanted = "python -m benchmarks.scaling --alphas 0,1 --set a.b=1 --set 'c.d=x y' --seed 3"
    assert found["command"] == wanted
    assert found["seconds"] >= 0


@pytest.mark.parametrize("option", ["--json", "--results"])
def test_a_place_where_nothing_can_be_written_is_refused_before_anything_is_measured(
    tmp_path: Path, option: str
) -> None:
    measured: list[int] = []

    @click.command("scaling")
    @bench_options
    def command(*, options: BenchOptions) -> None:
        measured.append(options.seed)
        report([], options)

    (tmp_path / "file").touch()
    refused = CliRunner().invoke(command, [option, str(tmp_path / "file" / "results.json")])
    assert (refused.exit_code, measured) == (2, [])
    assert "no directory can be made for it" in refused.output
    assert CliRunner().invoke(command, [option, str(tmp_path / "new" / "results.json")]).exit_code == 0
    assert (tmp_path / "new" / "results.json").is_file()


def test_the_published_runs_of_learning_are_of_the_settings_that_it_has_now() -> None:
    published = json.loads((root / "learning" / "results" / "learning.json").read_text(encoding="utf-8"))
    assignments = [f"{name}={value}" for name, value in as_published.items()]
    now = what_is_learnt(load_settings(assignments=[*assignments, "run.num_steps=20"]))
    younger = {key: value for key, value in now.items() if key not in published["settings"]}
    assert now == {**published["settings"], **younger}
    # A key that came later is left as it was without it.
    assert younger == {key: value for key, value in what_is_learnt(Settings()).items() if key in younger}


@pytest.mark.parametrize(("num_failed", "status"), [(0, 0), (2, 1)])
def test_an_experiment_of_which_runs_failed_ends_with_1_when_its_figures_are_written(
    tmp_path: Path, num_failed: int, status: int
) -> None:
    @click.command("growth")
    @bench_options
    def command(*, options: BenchOptions) -> None:
        report([], options, num_failed=num_failed)

    result = CliRunner().invoke(command, ["--json", str(tmp_path / "figures.json")])
    assert result.exit_code == status
    assert json.loads((tmp_path / "figures.json").read_text()) == []


def test_runs_have_seeds_from_the_first_one_on_and_controls_too() -> None:
    asked: dict[str, object] = {}

    def measure(**words: object) -> tuple[list[Figure], dict[str, object]]:
        asked.update(words)
        return [], {}

    @click.command("sums")
    @run_and_control_options("the example", "episode")
    @bench_options
    def command(*, num_seeds: int, num_controls: int, options: BenchOptions) -> None:
        report_runs_and_controls(measure, options, num_seeds=num_seeds, num_controls=num_controls)

    assert CliRunner().invoke(command, ["--seed", "5", "--seeds", "2"]).exit_code == 0
    assert (asked["seeds"], asked["control_seeds"]) == (range(5, 7), range(5, 6))
