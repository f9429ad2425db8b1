"""Deleting a run: all that belongs to it goes, and nothing else."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
from support.registered_run import a_home, published, registered, settings_of
from support.small_registry import SmallRegistry, Trouble, small_registry

from rollog.kernel.broker.memory import MemoryBroker
from rollog.kernel.errors import ConfigError
from rollog.kernel.payloads import PayloadStore
from rollog.kernel.runs import manifests_of, read_runs
from rollog.kernel.weights import WeightsStore
from rollog.run.creation import create_run
from rollog.run.deletion import Deletion
from rollog.run.disk_use import bytes_of_run
from rollog.run.manifest_check import checked_manifest
from rollog.run.relocation import at_home
from rollog.run.supervisor_lock import sole_supervisor
from schemas import RoleStatus, RunRole

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from support.written_run import WrittenRun

    from rollog.settings.settings import Settings


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return a_home(tmp_path / "home")


@pytest.fixture
def run(home: Path) -> WrittenRun:
    return registered(MemoryBroker(), settings_of(home))


def deletion_of(run: WrittenRun, settings: Settings, home: Path) -> Deletion:
    return Deletion.of(run.broker, run.topics, settings, home)


def delete(run: WrittenRun, settings: Settings, home: Path) -> list[str]:
    return list(deletion_of(run, settings, home).run(sleep=lambda _: None))


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


@pytest.mark.parametrize("uri", ["memory", "disk"])
def test_runs_that_share_a_store_keep_their_versions(uri: str, home: Path) -> None:
    """Both begin with the same model, so that they share the file of version 0, too."""
    uri = f"memory://{uuid4().hex}/w" if uri == "memory" else (home / "shared").as_uri()
    broker = MemoryBroker()
    first, second = (registered(broker, settings_of(home, run, uri=uri)) for run in ("first", "second"))
    store = WeightsStore(uri)
    common = published(first, uri, 0, b"model")
    assert published(second, uri, 0, b"model") == common
    of_first, of_second = published(first, uri, 1, b"first"), published(second, uri, 1, b"second")
    unknown = store.publish(1, b"noticed by nobody").name
    assert sorted(store.names()) == sorted([common, of_first, of_second, unknown])

    settings = settings_of(home, uri=uri)
    assert "1 weights files" in (line := deletion_of(first, settings, home).lines()[1])
    assert "3 others there are not known as its own and stay" in line
    delete(first, settings, home)

    assert sorted(store.names()) == sorted([common, of_second, unknown])
    delete(second, settings_of(home, "second", uri=uri), home)
    assert store.names() == [unknown]


def test_a_folder_that_another_run_names_is_shared(run: WrittenRun, home: Path) -> None:
    uri = settings_of(home).weights.uri or ""
    other = registered(run.broker, settings_of(home, "other", uri=uri))
    kept = published(other, uri, 1, b"other")
    gone = published(run, uri, 1, b"first")

    delete(run, settings_of(home), home)

    assert kept in WeightsStore(uri).names()
    assert gone not in WeightsStore(uri).names()


@pytest.mark.parametrize("num_done", [1, 2, 3])
def test_versions_in_a_shared_store_go_even_if_the_deletion_is_interrupted(num_done: int, home: Path) -> None:
    uri = f"memory://{uuid4().hex}/w"
    run = registered(MemoryBroker(), settings_of(home, uri=uri))
    published(run, uri, 1, b"first")
    interrupted = deletion_of(run, settings_of(home, uri=uri), home).run(sleep=lambda _: None)
    for _ in range(num_done):
        next(interrupted)
    del interrupted

    delete(run, settings_of(home, uri=uri), home)

    assert WeightsStore(uri).names() == []


def test_what_a_dead_writer_left_goes_with_a_folder_of_its_own_only(run: WrittenRun, home: Path) -> None:
    partial = ".partial-0123456789abcdef"
    shared = home / "shared"
    shared.mkdir()
    for directory in (home / "weights" / "first", shared):
        (directory / partial).write_bytes(b"half")

    assert deletion_of(run, settings_of(home, uri=shared.as_uri()), home).weights.names == ()
    delete(run, settings_of(home), home)

    assert not (home / "weights" / "first").exists()
    assert (shared / partial).exists()


@pytest.mark.parametrize("num_done", [1, 2, 3])
def test_a_deletion_in_a_copy_spares_the_original_however_often_it_is_repeated(
    num_done: int, run: WrittenRun, home: Path, tmp_path: Path
) -> None:
    copy = a_home(tmp_path / "copy")
    interrupted = deletion_of(run, at_home(settings_of(home), copy), copy).run(sleep=lambda _: None)
    for _ in range(num_done):
        next(interrupted)
    del interrupted

    assert at_home(settings_of(home), copy).weights.uri == (copy / "weights" / "first").as_uri()
    delete(run, at_home(settings_of(home), copy), copy)

    assert not (copy / "weights" / "first").exists()
    assert len(WeightsStore(str(home / "weights" / "first")).names()) == 1


@pytest.mark.parametrize("form", ["address", "path"])
def test_the_store_of_another_state_directory_stays(
    form: str, run: WrittenRun, home: Path, tmp_path: Path
) -> None:
    original = home / "weights" / "first"
    settings = settings_of(home, uri=original.as_uri() if form == "address" else str(original))
    published(run, str(original), 1, b"first")
    copy = tmp_path / "copy"

    assert f"of the state directory {home} and stay" in deletion_of(run, settings, copy).lines()[1]
    delete(run, settings, copy)

    assert len(WeightsStore(str(original)).names()) == 2
    assert list(read_runs(run.broker, "rollog")) == []


def test_a_state_directory_with_a_blank_in_its_name_is_its_own(tmp_path: Path) -> None:
    home = tmp_path / "my home"
    settings = settings_of(home)
    WeightsStore(settings.weights.uri or "").publish(0, b"weights")
    run = registered(MemoryBroker(), settings)

    delete(run, settings, home)

    assert WeightsStore(settings.weights.uri or "").names() == []


@pytest.mark.parametrize(("heartbeat_seconds", "seconds"), [(0.5, 6.0), (30.0, 90.0)])
def test_whoever_works_for_a_run_is_listened_for_as_long_as_three_heartbeats_take(
    heartbeat_seconds: float, seconds: float, run: WrittenRun, home: Path
) -> None:
    settings = settings_of(home).changed(rollout={"heartbeat_seconds": heartbeat_seconds})
    slept: list[float] = []

    list(deletion_of(run, settings, home).run(sleep=slept.append))

    assert slept == [seconds]


def test_a_copied_manifest_deletes_nothing_of_its_original(run: WrittenRun) -> None:
    (own,) = manifests_of(run.broker, "rollog", "first")
    run.write("rollog.runs", replace(own.manifest, run="junk"), key=b"junk")

    with pytest.raises(ConfigError, match="has the configuration of run 'first'"):
        checked_manifest(run.broker, read_runs(run.broker, "rollog")["junk"])


def test_objects_of_large_samples_go_with_their_run_alone(home: Path) -> None:
    uri, broker = (home / "shared").as_uri(), MemoryBroker()
    first, second = (registered(broker, settings_of(home, run, uri=uri)) for run in ("first", "second"))
    for run in (first, second):
        published(run, uri, 0, b"model")
        PayloadStore(WeightsStore(uri), run.topics).put(b"alike")
    settings = settings_of(home, uri=uri)
    assert "1 objects of large samples" in deletion_of(first, settings, home).lines()[1]
    assert bytes_of_run(first.topics, uri, home) == bytes_of_run(second.topics, uri, home) + 1000
    delete(first, settings, home)
    assert PayloadStore(WeightsStore(uri), first.topics).names() == []
    assert len(PayloadStore(WeightsStore(uri), second.topics).names()) == 1


def test_objects_of_the_original_stay_where_a_copy_is_deleted(home: Path, tmp_path: Path) -> None:
    uri, broker = (tmp_path / "original" / "weights" / "first").as_uri(), MemoryBroker()
    run = registered(broker, settings_of(home, uri=uri))
    published(run, uri, 0, b"model")
    PayloadStore(WeightsStore(uri), run.topics).put(b"data")
    delete(run, settings_of(home, uri=uri), home)
    assert len(PayloadStore(WeightsStore(uri), run.topics).names()) == 1


@pytest.fixture
def registry() -> Iterator[SmallRegistry]:
    with small_registry() as served:
        yield served


def with_registry(home: Path, run: str = "first", **section: Any) -> Settings:
    return settings_of(home, run).changed(broker={"framing": "registry"}, registry=section)


def test_schemas_of_a_run_go_with_it_and_those_of_others_stay(registry: SmallRegistry, home: Path) -> None:
    broker = MemoryBroker()
    settings = with_registry(home, url=registry.url)
    run = registered(broker, settings)
    create_run(broker, with_registry(home, "first-2", url=registry.url))
    num_own = sum(subject.startswith("rollog.first.") for subject in registry.subjects)

    line = f"{num_own} subjects in the schema registry at {registry.url}"
    assert line in deletion_of(run, settings, home).lines()
    said = delete(run, settings, home)

    assert f"deleted {num_own} subjects" in said
    assert said[-1] == "run first is deleted"
    assert {subject.split(".")[1] for subject in registry.subjects} == {"first-2"}
    assert registry.deleted == {}
    (home / "runs" / "first").mkdir(parents=True)
    registered(broker, settings)


@pytest.mark.parametrize("trouble", [None, Trouble.FAILING])
def test_a_run_is_deleted_although_its_registry_keeps_the_schemas(
    registry: SmallRegistry, home: Path, trouble: Trouble | None
) -> None:
    settings = with_registry(home, url=registry.url)
    run = registered(MemoryBroker(), settings)
    registry.refused_methods, registry.refused_paths = {"DELETE"}, "/subjects/"
    deletion = deletion_of(run, settings, home)
    registry.trouble = trouble

    said = list(deletion.run(sleep=lambda _: None))

    assert said[-1] == "run first is deleted"
    (left,) = [line for line in said if "stay" in line]
    assert "rollog.first.samples-value" in left
    assert ("no leader" if trouble else "not permitted") in left
    assert "`rollog topics schemas delete --run first`" in left
    assert "rollog.first.samples-value" in registry.subjects
    assert read_runs(run.broker, "rollog") == {}


@pytest.mark.parametrize(
    ("section", "trouble", "told"),
    [
        ({"url": None}, None, "no registry is named with registry.url"),
        ({}, Trouble.FAILING, "no leader"),
        ({"subjects": "record"}, None, "all runs share their subjects"),
    ],
)
def test_it_is_said_before_the_deletion_which_schemas_will_stay(
    registry: SmallRegistry, home: Path, section: dict[str, Any], trouble: Trouble | None, told: str
) -> None:
    given = {"url": registry.url, **section}
    run = registered(MemoryBroker(), with_registry(home, **{**given, "url": registry.url}))
    registry.trouble = trouble
    settings = with_registry(home, **given)

    assert any(told in line for line in deletion_of(run, settings, home).lines())
    assert any(told in line for line in delete(run, settings, home))
    assert registry.subjects
    assert read_runs(run.broker, "rollog") == {}
