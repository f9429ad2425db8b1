"""The public surface: what is in it, what importing it costs, and a recorded run read through it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from threading import Thread

import pytest
from support.registered_run import registered, settings_of
from support.written_run import a_verdict

import rollog
import rollog.api
from consumers.archive import WeightsChoice, export_archive
from rollog.kernel.broker.memory import MemoryBroker
from rollog.kernel.weights import WeightsStore
from schemas import Disposition, LedgerKind

root = Path(__file__).parents[2]
archive = root / "tests" / "data" / "recorded" / "run.zip"
head = "32c15780fd7dcae64bfd0d8cf909be6f8eb50a58d25457e715eda1e7e6fde99f"


def modules_after(code: str) -> set[str]:
    ended = subprocess.run(
        [sys.executable, "-c", f"{code}\nimport sys\nprint(*sys.modules)"],
        check=True,
        capture_output=True,
        text=True,
        cwd=root,
    )
    return set(ended.stdout.split())


def test_the_package_alone_imports_nothing_of_others() -> None:
    loaded = modules_after("import rollog")
    assert {name for name in loaded if name.startswith("rollog.")} == set()
    assert not loaded & {"kafka", "pydantic", "numpy", "torch", "pyarrow"}


def test_the_public_names_need_no_torch_and_no_tables() -> None:
    loaded = modules_after("from rollog import *")
    assert "rollog.api" in loaded
    assert not loaded & {"torch", "transformers", "vllm", "deepspeed", "pyarrow", "pandas", "datasets"}


def test_both_lists_of_public_names_and_the_page_agree() -> None:
    assert set(rollog.__all__) - {"__version__"} == set(rollog.api.__all__)
    page = (root / "docs" / "python.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (`.*?) \|", page.partition("## ")[0], flags=re.MULTILINE)
    assert {name for row in rows for name in re.findall(r"`(\w+)`", row)} == set(rollog.api.__all__)
    assert set(rollog.__all__) <= set(dir(rollog))


def test_a_name_that_is_not_public_is_none_of_the_package() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Trainer'"):
        rollog.Trainer  # type: ignore[attr-defined]  # noqa: B018


def test_an_archived_run_is_read_through_its_tables() -> None:
    with rollog.open_run(archive=archive) as run:
        assert (run.name, run.settings.groups.group_size) == ("recorded", 4)
        steps = run.steps().to_arrow().to_pylist()
        assert [row["step"] for row in steps] == [1, 2, 3, 4]
        assert [step.reward for step in run.follow()] == [row["reward"] for row in steps]
        samples = run.samples().to_pandas()
        assert samples.groupby("step")["reward"].mean().tolist() == [row["reward"] for row in steps]
        verdicts = run.verdicts().to_pandas()
        assert verdicts["disposition"].value_counts().to_dict() == {"trained": 32, "filtered": 8}
        assert len(run.samples().to_dataset()) == 32


def test_an_archived_run_is_followed_over_a_long_stretch_of_verdicts_alone(tmp_path: Path) -> None:
    uri = (tmp_path / "weights").as_uri()
    run = registered(MemoryBroker(), settings_of(tmp_path, uri=uri))
    run.genesis()
    run.step(1, reward=0.25, lags={"0": 2})
    for offset in range(2, 4500):  # more than two batches that the archive gives at once
        run.ledger(LedgerKind.VERDICTS, 1, None, (a_verdict(offset, Disposition.FILTERED),))
    run.step(2, reward=0.5, lags={"0": 2})
    path = tmp_path / "run.zip"
    export_archive(run.broker, run.topics, WeightsStore(uri), path, weights=WeightsChoice.NONE)

    with rollog.open_run(archive=path) as opened:
        assert [step.reward for step in opened.follow()] == [0.25, 0.5]


def test_its_audit_is_that_of_the_command() -> None:
    with rollog.open_run(archive=archive) as run:
        report = run.audit()
    assert report.is_clean
    assert head in json.dumps(report.as_json())


def test_a_run_that_is_not_in_the_archive_is_refused() -> None:
    with (
        pytest.raises(rollog.ConfigError, match="is of run 'recorded'"),
        rollog.open_run("x", archive=archive),
    ):
        pass


def test_settings_are_checked_before_anything_is_made(tmp_path: Path) -> None:
    home = tmp_path / "home"
    for settings, said in (
        ({"groups": {"group_sise": 4}}, "did you mean 'group_size'"),
        ({"groups": {"group_size": "four"}}, "groups.group_size = 'four'"),
        ({"groups": 4}, "groups is no section"),
    ):
        with pytest.raises(rollog.ConfigError, match=said):
            rollog.up(settings, home=home)
    with pytest.raises(rollog.ConfigError, match="is a lambda"):
        rollog.up({}, home=home, reward=lambda *_: 1.0)
    with pytest.raises(rollog.ConfigError, match="run name 'A B' is malformed"):
        rollog.up({}, home=home, name="A B")
    assert not home.exists()


@pytest.mark.parametrize("num_workers", [0, -1])
def test_a_run_without_workers_is_refused_before_anything_is_made(tmp_path: Path, num_workers: int) -> None:
    home = tmp_path / "home"
    with pytest.raises(rollog.ConfigError, match=f"with {num_workers} rollout workers would wait for ever"):
        rollog.up({}, home=home, broker="127.0.0.1:9", num_workers=num_workers, preflight=False)
    assert not home.exists()


def test_an_archived_run_takes_only_where_its_model_lies_here(tmp_path: Path) -> None:
    with rollog.open_run(archive=archive, settings={"model": {"path": tmp_path}}) as run:
        assert run.settings.model.path == str(tmp_path)
    with (
        pytest.raises(rollog.ConfigError, match="an archive holds everything but the model's directory"),
        rollog.open_run(archive=archive, settings={"groups": {"group_size": 3}}),
    ):
        pass


def test_a_run_is_started_in_the_main_thread_alone() -> None:
    refused: list[rollog.RollogError] = []

    def start() -> None:
        try:
            rollog.up({})
        except rollog.RollogError as error:
            refused.append(error)

    thread = Thread(target=start)
    thread.start()
    thread.join(30)
    assert "call it in the main thread" in str(refused[0])
