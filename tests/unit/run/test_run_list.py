"""The list of runs, and a state directory that was moved."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from support.registered_run import a_home, registered, settings_of

from rollog.kernel.broker.memory import MemoryBroker
from rollog.kernel.runs import manifests_of
from rollog.run.creation import manifest_of
from rollog.run.disk_use import directory_bytes
from rollog.run.relocation import at_home
from rollog.run.run_list import list_runs, run_table
from rollog.settings.settings import Settings

if TYPE_CHECKING:
    from pathlib import Path

    from support.written_run import WrittenRun

    from rollog.kernel.broker.ports import Broker
    from schemas import RunManifest


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return a_home(tmp_path / "home")


@pytest.fixture
def run(home: Path) -> WrittenRun:
    return registered(MemoryBroker(), settings_of(home))


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


def newer(manifest: RunManifest, run: str) -> RunManifest:
    """A manifest as a later version of rollog might write it."""
    config = json.loads(manifest.config_json)
    config["run"] |= {"name": run, "unheard_of": 1}
    return replace(manifest, run=run, config_json=json.dumps(config), created_unix_seconds=1e300)


def test_a_run_that_another_version_began_is_listed_beside_the_others(run: WrittenRun, home: Path) -> None:
    (own,) = manifests_of(run.broker, "rollog", "first")
    run.write("rollog.runs", newer(own.manifest, "later"), key=b"later")

    listed = list(list_runs(run.broker, "rollog", home, clock=lambda: 1e10))

    assert {each.name: each.state for each in listed} == {"first": "not begun", "later": "not readable"}
    later = next(line for line in run_table(listed) if line.startswith("later"))
    assert "0/?" in later
    assert "1970-01-01" in later


def test_a_manifest_with_the_configuration_of_another_run_is_not_read(run: WrittenRun, home: Path) -> None:
    (own,) = manifests_of(run.broker, "rollog", "first")
    run.write("rollog.runs", replace(own.manifest, run="junk"), key=b"junk")

    assert states(run.broker, home)["junk"] == "not readable"


@pytest.mark.parametrize("name", ["/", "../weights", "a b", ""])
def test_a_name_that_no_run_can_have_is_passed_over(name: str, run: WrittenRun, home: Path) -> None:
    (own,) = manifests_of(run.broker, "rollog", "first")
    run.write("rollog.runs", replace(own.manifest, run=name), key=b"junk")

    assert list(states(run.broker, home)) == ["first"]


@pytest.mark.parametrize("uri", ["file://[x", "nothing://known", ""])
def test_a_store_that_no_address_leads_to_ends_no_list(uri: str, run: WrittenRun, home: Path) -> None:
    (own,) = manifests_of(run.broker, "rollog", "first")
    config = Settings.from_manifest(own.manifest.config_json).changed(run={"name": "b"}, weights={"uri": uri})
    forged = replace(own.manifest, run="b", config_json=config.to_manifest(), weights_uri=uri)
    run.write("rollog.runs", forged, key=b"b")

    assert set(states(run.broker, home)) == {"first", "b"}


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


def test_a_directory_that_goes_away_while_it_is_counted_counts_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "stays").mkdir()
    (tmp_path / "stays" / "file").write_bytes(b"x" * 4096)
    gone = tmp_path / "gone"
    gone.mkdir()
    look_into = os.scandir

    def scandir(path: str | Path) -> object:
        if str(path) == str(gone):  # the directory above has named it already
            gone.rmdir()
        return look_into(path)

    monkeypatch.setattr(os, "scandir", scandir)

    assert directory_bytes(tmp_path) == 4096
    assert not gone.exists()


def test_a_directory_that_does_not_exist_takes_up_nothing(tmp_path: Path) -> None:
    assert directory_bytes(tmp_path / "none") == 0
