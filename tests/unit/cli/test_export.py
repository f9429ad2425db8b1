"""`rollog export`, from an archive: the samples of a run, and what is refused."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner
from support.recorded_run import recorded_run, store_of

from consumers.archive import WeightsChoice, export_archive
from consumers.ledger import read_ledger
from rollog.cli.main import cli
from rollog.kernel.errors import ConfigError
from schemas import Disposition

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from click.testing import Result


@pytest.fixture
def archive(tmp_path: Path) -> Iterator[tuple[Path, list[str]]]:
    """An archive, and the ids of its trained samples in order."""
    with recorded_run() as run:
        path = tmp_path / "run.zip"
        export_archive(run.broker, run.topics, store_of(run), path, weights=WeightsChoice.FIRST)
        trained = [
            verdict.sample_id
            for entry in read_ledger(run.broker, run.topics)
            for verdict in entry.record.verdicts
            if verdict.disposition is Disposition.TRAINED
        ]
        yield path, trained


def export(*words: object) -> Result:
    return CliRunner().invoke(cli, ["export", *map(str, words)])


def test_each_trained_sample_is_a_row_in_the_order_of_training(
    archive: tuple[Path, list[str]], tmp_path: Path
) -> None:
    path, trained = archive
    result = export("--archive", path, "--samples", tmp_path / "samples.jsonl")
    assert result.exit_code == 0, result.output
    assert f"{len(trained)} trained samples" in result.output
    rows = [json.loads(line) for line in (tmp_path / "samples.jsonl").read_text().splitlines()]
    assert [row["sample_id"] for row in rows] == trained
    assert [row["step"] for row in rows] == sorted(row["step"] for row in rows)
    first = rows[0]
    assert (first["step"], first["version"], first["lag"]) == (1, 0, 0)
    assert first["prompt_text"] == first["prompt_id"]
    assert len(first["token_ids"]) == len(first["behaviour_logprobs"]) == len(first["loss_mask"])
    group = [row for row in rows if row["group_id"] == first["group_id"]]
    assert {row["reward"]: row["advantage"] for row in group} == pytest.approx(
        {0.0: -0.7071058, 1.0: 0.7071058}
    )


def test_parquet_holds_the_same_rows(archive: tuple[Path, list[str]], tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    path, trained = archive
    assert export("--archive", path, "--samples", tmp_path / "s.parquet").exit_code == 0
    assert export("--archive", path, "--samples", tmp_path / "s.jsonl").exit_code == 0
    table = parquet.read_table(tmp_path / "s.parquet")
    plain = [json.loads(line) for line in (tmp_path / "s.jsonl").read_text().splitlines()]
    assert table.num_rows == len(trained)
    assert set(table.column_names) == set(plain[0])
    assert table.column("token_ids").to_pylist() == [row["token_ids"] for row in plain]
    assert table.column("sample_id").to_pylist() == trained


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["run"], "name one thing"),
        (["run", "a.zip", "--samples", "b.jsonl"], "name one thing"),
        (["run", "--samples", "b.jsonl", "--archive", "ARCHIVE"], "is of run"),
        (["--samples", "b.csv", "--archive", "ARCHIVE"], r"must end in \.jsonl or \.parquet"),
        (["--samples", "b.jsonl", "--archive", "ARCHIVE", "--broker", "localhost:1"], "leave out --broker"),
    ],
)
def test_what_does_not_fit_is_refused(
    archive: tuple[Path, list[str]], words: list[str], message: str
) -> None:
    result = export(*(str(archive[0]) if word == "ARCHIVE" else word for word in words))
    assert isinstance(result.exception, ConfigError)
    assert result.exception.args[0]
    with pytest.raises(ConfigError, match=message):
        raise result.exception
