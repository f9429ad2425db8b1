"""`rollog runs` and its subcommand: which of them heeds an option."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from rollog.cli.main import cli

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("given", "named"),
    [
        (["--home", "elsewhere"], "--home before delete"),
        (["--broker", "nowhere.invalid:9092", "--set", "run.prefix=team"], "--set, --broker before delete"),
        (["--run", "other"], "--run before delete"),
    ],
)
def test_an_option_before_delete_is_refused_and_not_passed_over(given: list[str], named: str) -> None:
    ended = CliRunner().invoke(cli, ["runs", *given, "delete", "first", "--yes"])
    assert ended.exit_code == 2
    assert named in ended.output
    assert "`rollog runs delete RUN --" in ended.output


def test_a_state_directory_of_the_environment_is_heeded_by_both(tmp_path: Path) -> None:
    ended = CliRunner().invoke(
        cli, ["runs", "delete", "first", "--archive", "x"], env={"ROLLOG_HOME": str(tmp_path)}
    )
    assert "--archive x is never changed" in f"{ended.output}{ended.exception}"
