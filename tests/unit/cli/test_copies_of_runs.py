"""Commands that delete or write refuse an archive and a mirror before they look at anything."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from rollog.cli.main import cli
from rollog.kernel.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    "command",
    [
        ["runs", "delete", "first", "--yes"],
        ["topics", "prune", "first"],
        ["dead-letters", "first", "--reinject"],
        ["weights", "prune", "first", "--keep-newest", "2", "--yes"],
    ],
    ids=["delete", "prune", "reinject", "prune weights"],
)
@pytest.mark.parametrize("copy", ["--archive", "--mirror"])
def test_a_copy_of_a_run_is_never_changed(command: list[str], copy: str, tmp_path: Path) -> None:
    """A mirror names the weights store of the run: what is deleted for the one is gone for the other."""
    ended = CliRunner().invoke(
        cli, [*command, copy, "source", "--broker", "127.0.0.1:9", "--home", str(tmp_path)]
    )
    assert isinstance(ended.exception, ConfigError), ended.output
    assert f"{copy} source is never changed" in str(ended.exception)
