"""Checkpoints are complete or they are nothing."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from rollog.kernel.errors import DiskFull, Superseded
from trainer.checkpoints import CheckpointStore, manifest_name

if TYPE_CHECKING:
    from collections.abc import Callable


def write_state(directory: Path, state: bytes = b"state") -> dict[str, str]:
    (directory / "engine").mkdir()
    (directory / "engine" / "state.pt").write_bytes(state)
    return {"engine/state.pt": hashlib.sha256(state).hexdigest()}


def copy_state(directory: Path) -> Callable[[], dict[str, str]]:
    return lambda: write_state(directory)


def test_a_complete_checkpoint_names_every_file(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    saved = store.save(7, "ab" * 32, write_state, keep=2)
    assert store.complete() == [saved]
    assert list(saved.files) == ["engine/state.pt"]
    assert saved.name == "step-000007"
    assert saved.damage() is None


def test_a_checkpoint_without_manifest_does_not_exist_and_its_place_is_used_again(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)

    def fail(directory: Path) -> dict[str, str]:
        write_state(directory)
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        store.save(1, "ab" * 32, fail, keep=2)
    assert store.complete() == []
    assert store.save(1, "ab" * 32, write_state, keep=2).damage() is None


def test_a_full_disk_is_named_and_what_was_half_written_takes_no_room(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)

    def fill(directory: Path) -> dict[str, str]:
        write_state(directory)
        with Path("/dev/full").open("w") as full:
            full.write("state")
        return {}

    with pytest.raises(DiskFull, match=f"No space left on device.*{tmp_path}"):
        store.save(1, "ab" * 32, fill, keep=2)
    assert list(tmp_path.iterdir()) == []
    assert store.save(1, "ab" * 32, write_state, keep=2).damage() is None


def test_only_the_newest_are_kept_and_remains_are_removed(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    (tmp_path / "step-000002").mkdir()
    for version in (1, 3, 4):
        store.save(version, "ab" * 32, write_state, keep=2)
    assert [checkpoint.version for checkpoint in store.complete()] == [4, 3]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-000003", "step-000004"]


def test_damage_is_named(tmp_path: Path) -> None:
    saved = CheckpointStore(tmp_path).save(1, "ab" * 32, write_state, keep=2)
    state = saved.directory / "engine" / "state.pt"
    state.write_bytes(b"stale")
    assert saved.damage() == "engine/state.pt does not have the sha256 that its manifest names"
    state.unlink()
    assert saved.damage() == "engine/state.pt is missing"


def test_an_unreadable_manifest_is_no_checkpoint(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    saved = store.save(1, "ab" * 32, write_state, keep=2)
    (saved.directory / manifest_name).write_text("[1, 2")
    assert store.complete() == []


def test_a_run_without_checkpoints_has_none(tmp_path: Path) -> None:
    assert CheckpointStore(tmp_path / "missing").complete() == []


def test_what_is_begun_is_no_checkpoint_until_its_version_is_committed(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    begun = store.begin(3, copy_state)
    assert list(begun.directory.iterdir()) == [], "what is copied is written when the version is committed"
    assert store.complete() == []
    saved = store.finish(begun, lambda: "ab" * 32, keep=2)
    assert store.complete() == [saved]
    assert (saved.name, saved.weights_sha256) == ("step-000003", "ab" * 32)
    assert not begun.directory.exists()


def test_of_a_version_that_is_never_committed_nothing_is_left(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    kept = store.save(2, "ab" * 32, write_state, keep=2)

    def fenced() -> str:
        raise Superseded("another trainer took over")

    with pytest.raises(Superseded):
        store.finish(store.begin(3, copy_state), fenced, keep=2)
    assert list(tmp_path.iterdir()) == [kept.directory]


def test_an_overtaken_trainer_leaves_the_checkpoint_of_its_successor_alone(tmp_path: Path) -> None:
    """Both make version 3; only one of them commits it."""

    def fenced() -> str:
        raise Superseded("another trainer took over")

    overtaken, successor = CheckpointStore(tmp_path), CheckpointStore(tmp_path)
    begun = overtaken.begin(3, copy_state)
    saved = successor.finish(successor.begin(3, copy_state), lambda: "ab" * 32, keep=2)
    with pytest.raises(Superseded):
        overtaken.finish(begun, fenced, keep=2)
    assert successor.complete() == [saved]
    assert saved.damage() is None


def test_who_has_taken_over_removes_remains_and_no_checkpoint(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    saved = store.save(1, "ab" * 32, write_state, keep=2)
    store.begin(2, copy_state)
    (tmp_path / "step-000009").mkdir()
    store.remove_remains()
    assert list(tmp_path.iterdir()) == [saved.directory]
