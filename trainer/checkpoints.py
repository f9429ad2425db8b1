"""Checkpoints of one run on the local disk.

A checkpoint is a directory `step-NNNNNN` with `manifest.json`, which names every file with its sha256. It is written
under another name and renamed last; anything else is the remains of a crash. Only the run's user may write here:
`trainer.trusted_files` looks before one is loaded.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
import shutil
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rollog.kernel.atomic_write import sync_path
from rollog.kernel.crash_points import CrashPoint, reach
from rollog.kernel.disk_room import naming_full_disk
from rollog.kernel.errors import DiskFull, LedgerError
from rollog.kernel.logs import get_logger
from rollog.kernel.private_directory import make_private, only_for_me

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from concurrent.futures import Executor, Future
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

    def remove_remains(self) -> None:
        """Remove what is no checkpoint. For who has taken the run over: nobody else writes one any more."""
        for path in self._directory.glob("step-*"):
            if _read(path) is None or not _directory_name.fullmatch(path.name):
                shutil.rmtree(path, ignore_errors=True)

    def save(
        self, version: int, weights_sha256: str, write: Callable[[Path], None], *, keep: int
    ) -> Checkpoint:
        """Let `write` fill a directory, finish it, and remove all but the newest `keep`. Raises DiskFull."""
        return self.finish(self.begin(version, write), version, lambda: weights_sha256, keep=keep)

    def begin(self, version: int, write: Callable[[Path], None]) -> Path:
        """Let `write` fill a new directory, which is no checkpoint until `finish`. Raises DiskFull."""
        make_private(self._directory)
        # A name of its own: an overtaken trainer must not meddle with the checkpoint of who took over.
        begun = self._directory / f"{_name_of(version)}.{secrets.token_hex(4)}.partial"
        with self._gone_if_full(begun):
            begun.mkdir(mode=0o700)
            write(begun)
            only_for_me(begun)
        return begun

    def finish(self, begun: Path, version: int, committed: Callable[[], str], *, keep: int) -> Checkpoint:
        """Make a checkpoint of what was begun, and remove all but the newest `keep`. Raises DiskFull.

        `committed` returns when the version is, with the sha256 of its weights. Where it raises, there is no such
        version: what was begun is removed.
        """
        try:
            weights_sha256 = committed()
        except BaseException:
            shutil.rmtree(begun, ignore_errors=True)
            raise
        with self._gone_if_full(begun):
            files = {
                str(path.relative_to(begun)): _synced_sha256(path)
                for path in sorted(begun.rglob("*"))
                if path.is_file()
            }
            reach(CrashPoint.CHECKPOINT_HALF_WRITTEN)
            _write_manifest(begun, {"version": version, "weights_sha256": weights_sha256, "files": files})
            directory = self._directory / _name_of(version)
            # What a crash left under this name is no checkpoint of this version, or was not usable.
            shutil.rmtree(directory, ignore_errors=True)
            begun.rename(directory)
            sync_path(self._directory)
        # Only now, so that a crash at any moment before leaves the one that was newest.
        self._thin_out(keep)
        return Checkpoint(version=version, weights_sha256=weights_sha256, directory=directory, files=files)

    @contextmanager
    def _gone_if_full(self, begun: Path) -> Iterator[None]:
        """What is half written when a disk is full takes room, and is of no use to anybody."""
        try:
            with naming_full_disk(self._directory):
                yield
        except DiskFull:
            shutil.rmtree(begun, ignore_errors=True)
            raise

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
    saving has held the training thread since the newest step; whoever records it resets it.

    A version that is in flight is saved in two parts: its files at once, before the engine goes on, and the rest on
    another thread, when the version is committed.
    """

    def __init__(
        self,
        store: CheckpointStore,
        engine: TrainingEngine,
        reporter: Reporter,
        clock: Callable[[], float],
        executor: Executor,
    ) -> None:
        self._store = store
        self._engine = engine
        self._reporter = reporter
        self._clock = clock
        self._executor = executor
        self._finishing: Future[Checkpoint] | None = None
        self.newest_version: int | None = None
        self.seconds_since_step = 0.0

    @property
    def newest_name(self) -> str | None:
        """Directory name of the newest one."""
        return None if self.newest_version is None else _name_of(self.newest_version)

    def complete(self) -> list[Checkpoint]:
        """All complete checkpoints on this disk, newest first."""
        return self._store.complete()

    def remove_remains(self) -> None:
        """Remove what crashes left, now that nobody else writes checkpoints of the run."""
        self._store.remove_remains()

    def save(self, ledger: LedgerState, *, keep: int) -> None:
        """Save the committed version, once; version 0 is in the weights store already."""
        self.take_note(wait=True)
        version = ledger.version
        if version in {0, self.newest_version}:
            return
        started = self._clock()
        self._saved(
            self._store.save(version, ledger.weights[version], self._engine.save_checkpoint, keep=keep),
            started,
        )

    def begin(self, version: int, committed: Callable[[], str], *, keep: int) -> None:
        """Write the files of a version that is in flight; `committed` is as for `CheckpointStore.finish`."""
        self.take_note(wait=True)
        started = self._clock()
        begun = self._store.begin(version, self._engine.save_checkpoint)
        self.seconds_since_step = self._clock() - started
        self._finishing = self._executor.submit(self._store.finish, begun, version, committed, keep=keep)

    def take_note(self, *, wait: bool = False) -> None:
        """See whether what was begun is a checkpoint now. Raises DiskFull, and what `committed` raised."""
        finishing = self._finishing
        if finishing is None or not (wait or finishing.done()):
            return
        self._finishing = None
        self._saved(finishing.result())

    def _saved(self, checkpoint: Checkpoint, started: float | None = None) -> None:
        self.newest_version = checkpoint.version
        if started is not None:
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
