"""`rollog audit`: what it prints, what it writes, how it ends."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING
from zipfile import ZipFile

import pytest
from click.testing import CliRunner
from support.audited_run import AuditedRun, record_run
from support.recorded_run import recorded_run, store_of

from consumers.archive import WeightsChoice, export_archive
from rollog.cli.audit import checked_head, tell
from rollog.cli.main import cli
from rollog.kernel.errors import ConfigError
from schemas import Disposition

if TYPE_CHECKING:
    from pathlib import Path

    from click.testing import Result


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> AuditedRun:
    return record_run(tmp_path_factory.mktemp("audited"))


def test_a_clean_run_ends_with_zero_and_counts(
    run: AuditedRun, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "audit.json"
    status = tell(run.audit(), path)

    output, written = capsys.readouterr().out, json.loads(path.read_text())
    assert status == 0
    assert "audit: nothing is off" in output
    assert "only against a head kept elsewhere" in output
    num_samples = len(run.recorded.all(run.topics.samples))
    assert f"samples: {num_samples} records = {num_samples} disposed of" in output
    assert (written["is_clean"], written["is_closed"], written["version"]) == (True, True, 4)
    assert [each["findings"] for each in written["checks"]] == [[]] * len(written["checks"])
    assert written["samples"]["num_records"] == sum(written["samples"]["num_by_disposition"].values())


def audited(path: Path) -> Result:
    return CliRunner().invoke(cli, ["audit", "--archive", str(path)], standalone_mode=False)


@pytest.mark.parametrize("choice", [WeightsChoice.FIRST, WeightsChoice.NONE])
def test_weights_that_were_not_put_into_an_archive_are_not_missing(
    choice: WeightsChoice, tmp_path: Path
) -> None:
    path = tmp_path / "run.zip"
    with recorded_run() as recorded:
        export_archive(recorded.broker, recorded.topics, store_of(recorded), path, weights=choice)
    result = audited(path)
    assert "audit: nothing is off" in result.output
    assert "weights files of" in result.output


def test_an_archive_whose_ledger_was_cut_off_is_off(tmp_path: Path) -> None:
    path = tmp_path / "run.zip"
    with recorded_run() as recorded:
        export_archive(recorded.broker, recorded.topics, store_of(recorded), path, weights=WeightsChoice.ALL)
    with ZipFile(path) as whole:
        members = {name: whole.read(name) for name in whole.namelist()}
    manifest = json.loads(members["manifest.json"])
    manifest["ledger_head"] = "1" * 64  # as if what it names had been the record after the last one
    with ZipFile(path, "w") as cut:
        for name, content in {**members, "manifest.json": json.dumps(manifest).encode()}.items():
            cut.writestr(name, content)
    result = audited(path)
    assert result.return_value == 1
    assert "does not end with the record that its archive names" in result.output


def test_what_is_off_is_shown_with_its_place_and_ends_with_one(
    run: AuditedRun, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    verdict, path = run.verdict(Disposition.TRAINED), tmp_path / "audit.json"
    record = run.sample(verdict)
    status = tell(run.audit(run.recorded.with_value(record, (record.value or b"") + b"x")), path)

    place = (
        f"{run.topics.samples}, partition {verdict.partition}, offset {verdict.offset}: {verdict.sample_id}"
    )
    output = capsys.readouterr().out
    assert status == 1
    assert f"OFF digests: {place}" in output
    assert "audit: 1 thing(s) off" in output
    written = json.loads(path.read_text())
    (digests,) = [each for each in written["checks"] if each["name"] == "digests"]
    assert digests["findings"][0]["place"] == {
        "topic": run.topics.samples,
        "partition": verdict.partition,
        "offset": verdict.offset,
    }


def test_a_flood_of_findings_is_cut_on_the_terminal_only(
    run: AuditedRun, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recorded = run.recorded
    for record in run.recorded.all(run.topics.samples):
        recorded = recorded.with_value(record, b"gone")
    tell(run.audit(recorded), tmp_path / "audit.json")

    num_samples = len(run.recorded.all(run.topics.samples))
    assert f"OFF digests: {num_samples - 20} more; --json names all" in capsys.readouterr().out
    written = json.loads((tmp_path / "audit.json").read_text())
    (digests,) = [each for each in written["checks"] if each["name"] == "digests"]
    assert len(digests["findings"]) == num_samples


def test_a_head_is_64_hexadecimal_digits() -> None:
    assert checked_head("AB" * 32) == "ab" * 32
    with pytest.raises(ConfigError, match="64 hexadecimal digits"):
        checked_head("abc")


def test_without_a_broker_the_command_names_the_remedy(tmp_path: Path) -> None:
    result = CliRunner().invoke(cli, ["audit", "first", "--home", str(tmp_path)])

    assert isinstance(result.exception, ConfigError)
    assert "no runs in the state directory" in str(result.exception)
    assert "--broker HOST:PORT" in str(result.exception)
