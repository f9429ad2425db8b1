"""I4 of files: what the store holds of every version of the ledger, and what of it was let go or lost."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from consumers.audit.findings import Finding, Missing
from consumers.audit.weights import manifest_format, version_of_file, weights_file_name
from rollog.kernel.errors import WeightsError
from rollog.kernel.versions.copies import VersionCopy

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

    from consumers.audit.findings import Check
    from consumers.audit.ledger_index import LedgerIndex
    from consumers.audit.weights import WeightsChecks
    from rollog.kernel.weights import WeightsStore
    from schemas import WeightVersion


def check_files(
    ledger: LedgerIndex,
    store: WeightsStore,
    weights: WeightsChecks,
    *,
    pruned_meanwhile: Callable[[], Collection[int]] = tuple,
    has_all_files: bool = True,
) -> Iterator[Missing]:
    """Read all files of every version of the ledger that was not pruned; yields what is missing and may be.

    Version 0 and the newest are needed, to train again from the start and to go on: without them something is off,
    unless the store is one that was made with chosen files only. What is not there as it should be may have been let
    go since its record was looked for: `pruned_meanwhile` tells. Patches are rebuilt one after the other, in a
    temporary directory with room for one version in full.
    """
    check, missing = ledger.checks.files, list[int]()
    found: dict[int, list[Finding]] = {}
    with TemporaryDirectory(prefix="rollog-audit-") as directory:
        looked = _Files(ledger, store, weights, VersionCopy(Path(directory)))
        for version, name in looked.names():
            if not looked.is_there(version, name):
                if has_all_files and version in {0, ledger.version}:
                    found[version] = [_not_there(store, version, name)]
                missing.append(version)
            else:
                found[version] = looked.findings(version, name)
    gone = set(pruned_meanwhile()) if missing or any(found.values()) else set()
    check.findings += [each for version, of_it in found.items() if version not in gone for each in of_it]
    yield from _not_checked(
        check,
        store,
        pruned=[version for version in ledger.weights if version in weights.pruned | gone],
        missing=[version for version in missing if version not in gone],
    )


def _not_checked(
    check: Check, store: WeightsStore, *, pruned: list[int], missing: list[int]
) -> Iterator[Missing]:
    check.num_unchecked += len(pruned) + len(missing)
    if pruned:
        yield Missing(
            what=f"weights of {len(pruned)} version(s) ({_ranges(sorted(pruned))}), which the run let go by its rule",
            consequence="their files are not checked; a replay makes them again and compares their sha256",
        )
    if missing:
        yield Missing(
            what=f"weights files of {len(missing)} version(s) ({_ranges(missing)}) in {store.public_uri}",
            consequence="not checked; version 0, or a checkpoint, and the samples make them again",
        )


def _not_there(store: WeightsStore, version: int, name: str) -> Finding:
    return Finding(
        message="the weights file is missing",
        record_id=f"version {version}",
        expected=f"{store.public_uri}/{name}",
        found="none",
    )


class _Files:
    """The files of each version that was not pruned. `copy` is where patches are rebuilt, one after the other."""

    def __init__(
        self, ledger: LedgerIndex, store: WeightsStore, weights: WeightsChecks, copy: VersionCopy
    ) -> None:
        self._ledger = ledger
        self._store = store
        self._pruned = weights.pruned
        self._noticed = {notice.version: notice for _, notice in weights.notices.values()}
        self._copy = copy
        self._stored = set(store.names())

    def names(self) -> Iterator[tuple[int, str]]:
        """Versions with the name of manifest or file. What nobody can know of counts as not checked."""
        for version, sha256 in sorted(self._ledger.weights.items()):
            if version in self._pruned:
                continue
            notice = self._sharded(version)
            if notice is not None:
                yield version, notice.name
            elif self._has_manifests:
                self._ledger.checks.files.num_unchecked += 1  # only its notice tells which files are its own
            else:
                yield version, weights_file_name(version, sha256)

    def is_there(self, version: int, name: str) -> bool:
        """Whether manifest or file of a version is stored, and those of all that it is based on."""
        notice = self._sharded(version)
        while notice is not None and notice.base is not None and notice.name in self._stored:
            base = self._sharded(notice.base.version)
            if base is None or base.version >= notice.version:
                return False
            notice = base
        return (name if notice is None else notice.name) in self._stored

    def findings(self, version: int, name: str) -> list[Finding]:
        """What is wrong with the files of a version."""
        notice = self._sharded(version)
        if notice is not None:
            return self._of_shards(notice)
        sha256 = self._ledger.weights[version]
        return _of_file(self._ledger.checks.files, self._store, name, sha256, self._noticed.get(version))

    def _sharded(self, version: int) -> WeightVersion | None:
        """The notice of a version by manifest and shards that has the digest of the ledger."""
        notice = self._noticed.get(version)
        if notice is None or (notice.format, notice.sha256) != (
            manifest_format,
            self._ledger.weights.get(version),
        ):
            return None
        return notice

    @property
    def _has_manifests(self) -> bool:
        """Whether versions of this run are manifests, by genesis, or where that is missing by the notices."""
        if self._ledger.genesis is not None:
            return self._ledger.genesis.weights_identity != "file"
        return any(notice.format == manifest_format for notice in self._noticed.values())

    def _of_shards(self, notice: WeightVersion) -> list[Finding]:
        try:
            if notice.base is None:
                self._store.check(notice)
            else:
                self._store.bring(notice, self._copy)
        except WeightsError as error:
            return [
                Finding(
                    message=f"the weights of {notice.name} are not there as noticed",
                    record_id=f"version {notice.version}",
                    expected=notice.sha256,
                    found=str(error),
                )
            ]
        self._ledger.checks.files.num_checked += 1
        return []


def _of_file(
    check: Check, store: WeightsStore, name: str, sha256: str, notice: WeightVersion | None
) -> list[Finding]:
    label = f"version {version_of_file(name)}"
    try:
        found, found_bytes = store.digest(name)
    except WeightsError as error:
        message = "the weights file cannot be read"
        return [Finding(message=message, record_id=label, expected=sha256, found=str(error))]
    check.num_checked += 1
    if found != sha256:
        message = f"the weights file {name} was altered"
        return [Finding(message=message, record_id=label, expected=sha256, found=found)]
    if notice is not None and found_bytes != notice.num_bytes:
        message = f"the notice of {name} gives another length"
        expected, said = str(found_bytes), str(notice.num_bytes)
        return [Finding(message=message, record_id=label, expected=expected, found=said)]
    return []


def _ranges(numbers: list[int]) -> str:
    """`0-3, 5` for 0, 1, 2, 3 and 5."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1] = [runs[-1][0], number]
        else:
            runs.append([number])
    return ", ".join("-".join(map(str, run)) for run in runs)
