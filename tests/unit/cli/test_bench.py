"""`rollog bench` on the command line."""

from __future__ import annotations

from click.testing import CliRunner

from rollog.cli.main import cli


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
