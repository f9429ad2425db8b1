"""`rollog bench` on the command line."""

from __future__ import annotations

import json
from pathlib import Path

from click.testing import CliRunner

from benchmarks.harness.commands_learning import what_is_learnt
from benchmarks.harness.demo_run import as_published
from rollog.cli.main import cli
from rollog.settings.sources import load_settings

results = Path(__file__).parents[3] / "benchmarks" / "results"


def test_items_that_do_not_exist_are_refused_by_name() -> None:
    result = CliRunner().invoke(cli, ["bench", "scheduling", "--items", "1,99"])
    assert result.exit_code == 2
    assert "99 is not known" in result.output


def test_every_benchmark_takes_a_seed_and_a_file_for_its_figures() -> None:
    for name in cli.commands["bench"].commands:  # type: ignore[attr-defined]
        result = CliRunner().invoke(cli, ["bench", name, "--help"])
        assert result.exit_code == 0
        assert "--seed" in result.output
        assert "--json" in result.output


def test_algorithms_and_lags_that_do_not_exist_are_refused_by_name() -> None:
    for option, value, told in (
        ("--algorithms", "grpo,best", "best is not known"),
        ("--lags", "0,-1", "a lag is 0 or more"),
        ("--lags", "0,half", "is not a list of numbers"),
    ):
        result = CliRunner().invoke(cli, ["bench", "learning", option, value])
        assert result.exit_code == 2
        assert told in result.output


def test_the_published_runs_of_learning_are_of_the_settings_that_it_has_now() -> None:
    published = json.loads((results / "learning.json").read_text(encoding="utf-8"))["settings"]
    assignments = [f"{name}={value}" for name, value in as_published.items()]
    now = what_is_learnt(load_settings(assignments=[*assignments, "run.num_steps=20"]))
    assert now == published
