"""Checkpoints of one run on the local disk.

A checkpoint is a directory `step-NNNNNN`. It is complete when it holds `manifest.json`, which names every file with
its sha256 and is renamed into place last; anything else is the remains of a crash. Only the run's user may write here:
`trainer.trusted_files` looks before one is loaded.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rollog.kernel.atomic_write import sync_path
from rollog.kernel.crash_points import CrashPoint, reach
from rollog.kernel.disk_room import naming_full_disk
from rollog.kernel.errors import DiskFull, LedgerError
from rollog.kernel.logs import get_logger
from rollog.kernel.private_directory import make_private, only_for_me

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from rollog.rules.ledger_state import LedgerState
    from trainer.engines.ports import TrainingEngine
    from trainer.reporting import Reporter

log = get_logger("trainer")

manifest_name = "manifest.json"
_directory_name = re.compile(r"step-(\d{6,})")


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """One complete checkpoint: the state after the training step that made `version`."""

    version: int
    weights_sha256: str
    directory: Path
    files: dict[str, str]

    @property
    def name(self) -> str:
        """Name of its directory."""
        return self.directory.name

    @property
    def is_whole(self) -> bool:
        """Whether all its files are there."""
        return all((self.directory / name).is_file() for name in self.files)

    def damage(self) -> str | None:
        """What is wrong with its files, if anything."""
        for name, sha256 in self.files.items():
            path = self.directory / name
            if not path.is_file():
                return f"{name} is missing"
            if _sha256(path) != sha256:
                return f"{name} does not have the sha256 that its manifest names"
        return None


class CheckpointStore:
    """Writes, lists and thins out the checkpoints of one run."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def complete(self) -> list[Checkpoint]:
        """All complete checkpoints, newest first."""
        read = [
            _read(path) for path in self._directory.glob("step-*") if _directory_name.fullmatch(path.name)
        ]
        return sorted(
            (checkpoint for checkpoint in read if checkpoint is not None),
            key=lambda checkpoint: checkpoint.version,
            reverse=True,
        )

    def save(
        self, version: int, weights_sha256: str, write: Callable[[Path], None], *, keep: int
    ) -> Checkpoint:
        """Let `write` fill a directory, complete it, and remove all but the newest `keep`. Raises DiskFull."""
        try:
            with naming_full_disk(self._directory):
                return self._save(version, weights_sha256, write, keep=keep)
        except DiskFull:
            # What is half written takes room, and is of no use to anybody.
            shutil.rmtree(self._directory / _name_of(version), ignore_errors=True)
            raise

    def _save(
        self, version: int, weights_sha256: str, write: Callable[[Path], None], *, keep: int
    ) -> Checkpoint:
        directory = self._directory / _name_of(version)
        # What a crash left under this name must not be taken for a file of this checkpoint.
        shutil.rmtree(directory, ignore_errors=True)
        make_private(self._directory)
        directory.mkdir(mode=0o700)
        write(directory)
        only_for_me(directory)
        files = {
            str(path.relative_to(directory)): _synced_sha256(path)
            for path in sorted(directory.rglob("*"))
            if path.is_file()
        }
        reach(CrashPoint.CHECKPOINT_HALF_WRITTEN)
        _write_manifest(directory, {"version": version, "weights_sha256": weights_sha256, "files": files})
        # Only now, so that a crash at any moment before leaves the one that was newest.
        self._thin_out(keep)
        return Checkpoint(version=version, weights_sha256=weights_sha256, directory=directory, files=files)

    def _thin_out(self, keep: int) -> None:
        kept = {checkpoint.directory for checkpoint in self.complete()[:keep]}
        for path in self._directory.glob("step-*"):
            if path not in kept:
                shutil.rmtree(path, ignore_errors=True)


def usable_checkpoint(
    checkpoints: Sequence[Checkpoint], ledger: LedgerState, *, at_most: int
) -> Checkpoint | None:
    """The newest undamaged checkpoint up to version `at_most`. Raises LedgerError for one of another history."""
    for checkpoint in checkpoints:
        if checkpoint.version > at_most:
            continue
        if checkpoint.weights_sha256 != ledger.weights.get(checkpoint.version):
            named = ledger.weights.get(checkpoint.version, "none")
            raise LedgerError(
                f"checkpoint {checkpoint.directory} holds weights {checkpoint.weights_sha256[:16]}, the ledger names "
                f"{named[:16]} for version {checkpoint.version}: it belongs to another run; remove it"
            )
        damage = checkpoint.damage()
        if damage is None:
            return checkpoint
        log.warning("checkpoint damaged", checkpoint=checkpoint.name, damage=damage)
    return None


class EngineCheckpoints:
    """The checkpoints of one engine: when to save, and what the ledger says of them.

    `newest_version` is the version saved last or restored from, None before either. `seconds_since_step` is how long
    saving took since the newest step; whoever records it resets it.
    """

    def __init__(
        self, store: CheckpointStore, engine: TrainingEngine, reporter: Reporter, clock: Callable[[], float]
    ) -> None:
        self._store = store
        self._engine = engine
        self._reporter = reporter
        self._clock = clock
        self.newest_version: int | None = None
        self.seconds_since_step = 0.0

    @property
    def newest_name(self) -> str | None:
        """Directory name of the newest one."""
        return None if self.newest_version is None else _name_of(self.newest_version)

    def complete(self) -> list[Checkpoint]:
        """All complete checkpoints on this disk, newest first."""
        return self._store.complete()

    def save(self, ledger: LedgerState, *, keep: int) -> None:
        """Save the committed version, once; version 0 is in the weights store already."""
        version = ledger.version
        if version in {0, self.newest_version}:
            return
        started = self._clock()
        checkpoint = self._store.save(
            version, ledger.weights[version], self._engine.save_checkpoint, keep=keep
        )
        self.newest_version = version
        self.seconds_since_step = self._clock() - started
        self._reporter.checkpointed(checkpoint.name, self.seconds_since_step)


def _name_of(version: int) -> str:
    return f"step-{version:06d}"


def _write_manifest(directory: Path, manifest: dict[str, object]) -> None:
    partial = directory / f"{manifest_name}.partial"
    with partial.open("w", encoding="utf-8") as target:
        os.fchmod(target.fileno(), 0o600)
        json.dump(manifest, target, indent=1)
        target.flush()
        os.fsync(target.fileno())
    partial.replace(directory / manifest_name)
    for path in (directory, directory.parent):
        sync_path(path)


def _read(directory: Path) -> Checkpoint | None:
    """The checkpoint in `directory`, or None where its manifest is missing or unreadable."""
    try:
        manifest = json.loads((directory / manifest_name).read_text(encoding="utf-8"))
        return Checkpoint(
            version=int(manifest["version"]),
            weights_sha256=str(manifest["weights_sha256"]),
            directory=directory,
            files={str(name): str(sha256) for name, sha256 in manifest["files"].items()},
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _synced_sha256(path: Path) -> str:
    sync_path(path)
    return _sha256(path)


def _sha256(path: Path) -> str:
    with path.open("rb") as source:
        return hashlib.file_digest(source, "sha256").hexdigest()
