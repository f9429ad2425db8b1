"""The versions of a run and what its store holds of them: listed by their notices, or read through.

Consumes steps, weights and the store; produces nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from consumers.ledger import StoredLedger, folded
from consumers.named_weights import read_named_weights
from rollog.kernel.errors import ConfigError, LedgerError, WeightsError, WeightsStoreSilent
from rollog.kernel.versions.belonging import belonging
from rollog.kernel.versions.manifest import manifest_format
from rollog.run.ledger_weights import LedgerWeights

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from consumers.named_weights import NamedWeights
    from rollog.run.recorded_run import RecordedRun
    from schemas import WeightVersion


class StoredState(StrEnum):
    """What a store has of a version."""

    HERE = "in the store"
    MISSING = "missing"
    """Its files, or some that it is stored as changes of, are gone or cut."""
    PRUNED = "pruned"
    LEFT = "pruned, files are left"
    UNNAMED = "no notice names it"


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedVersion:
    """One version. `form` and `num_bytes`, which are stored for it, are of its last notice, None without one."""

    version: int
    state: StoredState
    form: str | None = None
    num_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedVersion:
    """One version that was read through; `fault` says what is wrong with it."""

    version: int
    fault: str | None


def list_weights(run: RecordedRun) -> list[ListedVersion]:
    """All versions of the ledger. Only names, lengths and manifests are looked at.

    Raises LedgerError before genesis, WeightsError for a store that cannot be listed.
    """
    named = _named(run)
    notices = {notice.version: notice for notice in named.notices}
    names = run.store.names()
    return [
        ListedVersion(
            version=version,
            state=_state(version, named, run, names),
            form=None if version not in notices else _form(notices[version]),
            num_bytes=None if version not in notices else _stored_bytes(notices[version]),
        )
        for version in sorted(named.weights)
    ]


def weights_table(versions: Iterable[ListedVersion]) -> list[str]:
    """The versions as lines of a table, with a head."""
    rows = [("version", "form", "bytes", "state")]
    rows += [
        (
            str(each.version),
            each.form or "-",
            "-" if each.num_bytes is None else str(each.num_bytes),
            each.state,
        )
        for each in versions
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    return [
        "  ".join([*(f"{cell:>{w}}" for cell, w in zip(row, widths, strict=False)), row[3]]) for row in rows
    ]


def check_weights(run: RecordedRun) -> Iterator[CheckedVersion]:
    """Read all files of each version that was not pruned, and compare them with its digest.

    Patches are rebuilt one after the other, in a temporary directory with room for one version in full. Raises
    ConfigError for an archive with chosen weights only, WeightsStoreSilent.
    """
    if not run.has_all_weights:
        raise ConfigError(
            "the archive was made without some of the weights (`rollog export --weights`): name the run"
        )
    named = _named(run)
    with TemporaryDirectory(prefix="rollog-weights-") as directory:
        weights = LedgerWeights(named, run.store, Path(directory))
        for version in sorted(named.weights.keys() - named.pruned):
            yield CheckedVersion(version=version, fault=_fault(weights, version))


def _named(run: RecordedRun) -> NamedWeights:
    ledger = folded(StoredLedger(run.broker, run.topics))
    if not ledger.has_genesis:
        raise LedgerError("the ledger has not begun: there is no version yet; wait for version 0")
    return read_named_weights(run.broker, run.topics, ledger.weights)


def _state(version: int, named: NamedWeights, run: RecordedRun, names: list[str]) -> StoredState:
    if version in named.pruned:
        own = {notice.name for notice in named.notices if notice.version == version}
        return StoredState.LEFT if belonging(names, own) else StoredState.PRUNED
    notice = named.get(version)
    if notice is None:
        return StoredState.UNNAMED
    return StoredState.HERE if run.store.has(notice) else StoredState.MISSING


def _form(notice: WeightVersion) -> str:
    if notice.format != manifest_format:
        return "one file"
    return "full" if notice.base is None else f"patch of {notice.base.version}"


def _stored_bytes(notice: WeightVersion) -> int:
    return notice.stored_bytes or notice.num_bytes


def _fault(weights: LedgerWeights, version: int) -> str | None:
    try:
        with weights.file(version):
            return None
    except WeightsStoreSilent:
        raise
    except WeightsError as error:
        return str(error)
