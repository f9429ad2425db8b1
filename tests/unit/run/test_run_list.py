"""The list of runs, deleting one, and a state directory that was moved."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from support.written_run import WrittenRun

from rollog.kernel.broker.memory import MemoryBroker
from rollog.kernel.broker.topics import RunTopics
from rollog.kernel.errors import ConfigError
from rollog.kernel.runs import manifests_of, read_runs
from rollog.kernel.weights import WeightsStore
from rollog.run.creation import create_run, manifest_of
from rollog.run.deletion import Deletion
from rollog.run.disk_use import directory_bytes
from rollog.run.relocation import at_home
from rollog.run.run_list import list_runs, run_table
from rollog.run.supervisor_lock import sole_supervisor
from rollog.settings.settings import Settings
from schemas import RoleStatus, RunRole

if TYPE_CHECKING:
    from pathlib import Path

    from rollog.kernel.broker.ports import Broker


def settings_of(home: Path, run: str = "first") -> Settings:
    uri = (home / "weights" / run).as_uri()
    return Settings().changed(
        run={"name": run, "num_steps": 2},
        weights={"uri": uri},
        model={"path": str(home / "cache" / "model")},
        data={"train": "/data/train.jsonl"},
        broker={"samples_partitions": 2, "max_workers": 2},
    )


@pytest.fixture
def home(tmp_path: Path) -> Path:
    made = tmp_path / "home"
    (made / "cache" / "model").mkdir(parents=True)
    (made / "runs" / "first").mkdir(parents=True)
    (made / "runs" / "first" / "summary.json").write_text("{}" * 500)
    WeightsStore(str(made / "weights" / "first")).publish(0, b"weights")
    return made


@pytest.fixture
def run(home: Path) -> WrittenRun:
    """A registered run with topics of its own and nothing on them."""
    broker = MemoryBroker()
    settings = settings_of(home)
    create_run(broker, settings)
    return WrittenRun(broker, RunTopics("rollog", "first"), settings.to_manifest())


def states(broker: Broker, home: Path, now: float = 0.0) -> dict[str, str]:
    return {each.name: each.state for each in list_runs(broker, "rollog", home, clock=lambda: now)}


def test_a_run_is_listed_with_its_state_and_size(run: WrittenRun, home: Path) -> None:
    late = 10_000_000_000.0
    assert states(run.broker, home, late) == {"first": "not begun"}
    run.genesis()
    run.step(1, reward=0.25, lags={"0": 2})
    (listed,) = list_runs(run.broker, "rollog", home, clock=lambda: late)
    assert (listed.state, listed.steps, listed.num_steps) == ("stopped", 1, 2)
    assert listed.bytes_here >= 1000
    head, line = run_table([listed])
    assert head.split()[:3] == ["RUN", "STATE", "STEPS"]
    assert line.split()[:3] == ["first", "stopped", "1/2"]
    assert states(run.broker, home) == {"first": "running"}
    run.step(2, reward=0.5, lags={"1": 2})
    run.close(2, end_offsets=(4, 0))
    assert states(run.broker, home) == {"first": "over"}


def test_a_run_without_topics_is_listed_all_the_same(run: WrittenRun, home: Path) -> None:
    with run.broker.admin() as admin:
        admin.delete_topics([name for name in admin.list_topics() if name.startswith("rollog.first.")])
    assert states(run.broker, home) == {"first": "no topics"}


def test_a_run_is_deleted_with_all_that_belongs_to_it_and_its_name_can_be_used_again(
    run: WrittenRun, home: Path
) -> None:
    other = settings_of(home, "other")
    create_run(run.broker, other)
    stranger = home / "weights" / "first" / "notes.txt"
    stranger.write_text("mine")

    said = list(Deletion.of(run.broker, run.topics, settings_of(home), home).run(sleep=lambda _: None))

    assert said[-1] == "run first is deleted"
    assert list(read_runs(run.broker, "rollog")) == ["other"]
    assert not (home / "runs" / "first").exists()
    assert [path.name for path in (home / "weights" / "first").iterdir()] == ["notes.txt"]
    with run.broker.admin() as admin:
        assert {name.split(".")[1] for name in admin.list_topics()} == {"runs", "other"}
    create_run(run.broker, settings_of(home))
    assert len(manifests_of(run.broker, "rollog", "first")) == 1


def test_a_deletion_that_was_interrupted_is_done_by_the_next(run: WrittenRun, home: Path) -> None:
    deletion = Deletion.of(run.broker, run.topics, settings_of(home), home).run(sleep=lambda _: None)
    next(deletion)
    del deletion
    assert list(read_runs(run.broker, "rollog")) == ["first"]

    again = Deletion.of(run.broker, run.topics, settings_of(home), home)
    assert again.topic_names == ()
    assert list(again.run(sleep=lambda _: None))[-1] == "run first is deleted"
    assert not (home / "weights" / "first").exists()


def test_a_run_that_somebody_works_for_is_not_deleted(run: WrittenRun, home: Path) -> None:
    deletion = Deletion.of(run.broker, run.topics, settings_of(home), home)

    def beat(_: float) -> None:
        run.write(run.topics.workers, RoleStatus(role=RunRole.TRAINER, role_id="t"), key=b"trainer")

    with pytest.raises(ConfigError, match="1 heartbeats came"):
        list(deletion.run(sleep=beat))
    with (
        sole_supervisor(deletion.directory, "first"),
        pytest.raises(ConfigError, match="under way here already"),
    ):
        list(deletion.run(sleep=lambda _: None))
    assert list(read_runs(run.broker, "rollog")) == ["first"]
    assert WeightsStore(str(home / "weights" / "first")).names()


def test_a_moved_state_directory_has_its_files_where_it_is_now(home: Path, tmp_path: Path) -> None:
    recorded = Settings.from_manifest(manifest_of(settings_of(home)).config_json)
    moved = home.rename(tmp_path / "moved")

    found = at_home(recorded, moved)

    assert found.weights.uri == (moved / "weights" / "first").as_uri()
    assert found.model.path == str(moved / "cache" / "model")
    assert found.data.train == "/data/train.jsonl"


@pytest.mark.parametrize(
    "uri", ["s3://bucket/weights/first", "file:///shared/first", "file:///shared/weights/second"]
)
def test_a_store_elsewhere_stays_where_it_is(home: Path, uri: str) -> None:
    recorded = settings_of(home).changed(weights={"uri": uri})
    assert at_home(recorded, home).weights.uri == uri


def test_a_run_of_another_state_directory_stays_there(home: Path, tmp_path: Path) -> None:
    recorded = settings_of(home)
    assert at_home(recorded, tmp_path / "other") == recorded


def test_a_directory_that_does_not_exist_takes_up_nothing(tmp_path: Path) -> None:
    assert directory_bytes(tmp_path / "none") == 0
