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
from functools import partial
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
    from trainer.checkpoint_files import Digests
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


@dataclass(frozen=True, slots=True)
class BegunCheckpoint:
    """A directory that is no checkpoint yet. `write`, called once and on any thread, puts its files there."""

    version: int
    directory: Path
    write: Callable[[], Digests]


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
        self, version: int, weights_sha256: str, write: Callable[[Path], Digests], *, keep: int
    ) -> Checkpoint:
        """Let `write` fill a directory, finish it, and remove all but the newest `keep`. Raises DiskFull."""
        begun = self.begin(version, lambda directory: partial(dict, write(directory)))
        return self.finish(begun, lambda: weights_sha256, keep=keep)

    def begin(self, version: int, copy: Callable[[Path], Callable[[], Digests]]) -> BegunCheckpoint:
        """Let `copy` keep what is to be written into a new directory, or write it. Raises DiskFull."""
        make_private(self._directory)
        # A name of its own: an overtaken trainer must not meddle with the checkpoint of who took over.
        directory = self._directory / f"{_name_of(version)}.{secrets.token_hex(4)}.partial"
        with self._gone_if_full(directory):
            directory.mkdir(mode=0o700)
            return BegunCheckpoint(version, directory, copy(directory))

    def finish(self, begun: BegunCheckpoint, committed: Callable[[], str], *, keep: int) -> Checkpoint:
        """Make a checkpoint of what was begun, and remove all but the newest `keep`. Raises DiskFull.

        `committed` returns when the version is, with the sha256 of its weights. Where it raises, there is no such
        version: what was begun is removed.
        """
        version, directory = begun.version, begun.directory
        try:
            # First: workers wait for the version, and its files shall have the disk until it is committed.
            weights_sha256 = committed()
        except BaseException:
            shutil.rmtree(directory, ignore_errors=True)
            raise
        with self._gone_if_full(directory):
            digests = begun.write()
            only_for_me(directory)
            files = _with_others(directory, digests)
            reach(CrashPoint.CHECKPOINT_HALF_WRITTEN)
            _write_manifest(directory, {"version": version, "weights_sha256": weights_sha256, "files": files})
            named = self._directory / _name_of(version)
            # What a crash left under this name is no checkpoint of this version, or was not usable.
            shutil.rmtree(named, ignore_errors=True)
            directory.rename(named)
            sync_path(self._directory)
        # Only now, so that a crash at any moment before leaves the one that was newest.
        self._thin_out(keep)
        return Checkpoint(version=version, weights_sha256=weights_sha256, directory=named, files=files)

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

    A version that is in flight is saved in two parts: the engine's state is copied before the engine goes on, and
    another thread writes the copy when the version is committed. One checkpoint at a time: there is memory for one
    copy, and a disk that is slower than this would only fall behind further. So whoever comes to the next one waits
    for it, and `trainer.checkpoint_every_steps` bounds what is redone, always.
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
        self._copy_seconds = 0.0
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
        saved = self._store.save(version, ledger.weights[version], self._engine.save_checkpoint, keep=keep)
        self.seconds_since_step = self._clock() - started
        self._saved(saved, self.seconds_since_step)

    def begin(self, version: int, committed: Callable[[], str], *, keep: int) -> None:
        """Copy a version that is in flight; `committed` is as for `CheckpointStore.finish`."""
        started = self._clock()
        self.take_note(wait=True)
        begun = self._store.begin(version, self._engine.begin_checkpoint)
        reach(CrashPoint.CHECKPOINT_COPIED)
        self.seconds_since_step = self._copy_seconds = self._clock() - started
        self._finishing = self._executor.submit(self._store.finish, begun, committed, keep=keep)

    def take_note(self, *, wait: bool = False) -> None:
        """See whether what was begun is a checkpoint now. Raises DiskFull, and what `committed` raised."""
        finishing = self._finishing
        if finishing is None or not (wait or finishing.done()):
            return
        self._finishing = None
        self._saved(finishing.result(), self._copy_seconds)

    def close(self) -> None:
        """Wait for what was begun, which a trainer that fails finishes all the same. Idempotent."""
        finishing, self._finishing = self._finishing, None
        error = None if finishing is None else finishing.exception()
        if error is not None:
            log.warning("the checkpoint that was begun is not finished", error=str(error))

    def _saved(self, checkpoint: Checkpoint, seconds: float) -> None:
        self.newest_version = checkpoint.version
        self._reporter.checkpointed(checkpoint.name, seconds)


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


def _with_others(directory: Path, digests: Digests) -> dict[str, str]:
    """The digests of all files, those too that were written by others than the ranks: DeepSpeed adds a script."""
    others = {
        name: _synced_sha256(path)
        for path in directory.rglob("*")
        if path.is_file() and (name := str(path.relative_to(directory))) not in digests
    }
    return dict(sorted({**others, **digests}.items()))


def _synced_sha256(path: Path) -> str:
    sync_path(path)
    return _sha256(path)


def _sha256(path: Path) -> str:
    with path.open("rb") as source:
        return hashlib.file_digest(source, "sha256").hexdigest()
