"""`rollog weights` over an archive, which needs no broker."""

from __future__ import annotations

from pathlib import Path

from click.testing import CliRunner

from rollog.cli.main import cli

archive = Path(__file__).parents[2] / "data" / "recorded" / "run.zip"


def test_the_versions_of_an_archive_are_listed_and_read(tmp_path: Path) -> None:
    words = ["--archive", str(archive), "--home", str(tmp_path)]
    listed = CliRunner().invoke(cli, ["weights", "list", *words])
    assert listed.exit_code == 0, listed.output
    rows = listed.output.splitlines()
    assert rows[0].split() == ["version", "form", "bytes", "state"]
    assert all(row.endswith("in the store") for row in rows[1:])
    read = CliRunner().invoke(cli, ["weights", "check", *words], standalone_mode=False)
    assert read.return_value == 0, read.output
    assert f"{len(rows) - 1} versions read, 0 lost or damaged" in read.output
