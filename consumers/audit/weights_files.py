"""I4 of files: what the store holds of every version of the ledger, and what of it was let go or lost."""

from __future__ import annotations

from typing import TYPE_CHECKING

from consumers.audit.findings import Finding, Missing
from consumers.audit.weights import manifest_format, version_of_file, weights_file_name
from rollog.kernel.errors import WeightsError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator

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
    go since its record was looked for: `pruned_meanwhile` tells.
    """
    check, newest = ledger.checks.files, ledger.version
    noticed = {notice.version: notice for _, notice in weights.notices.values()}
    stored = set(store.names())
    has_manifests = _has_manifests(ledger, noticed.values())
    missing: list[int] = []
    found: dict[int, list[Finding]] = {}
    for version, sha256 in sorted(ledger.weights.items()):
        if version in weights.pruned:
            continue
        name = weights_file_name(version, sha256)
        notice = noticed.get(version)
        is_sharded = notice is not None and (notice.format, notice.sha256) == (manifest_format, sha256)
        if notice is not None and is_sharded:
            name = notice.name
        elif has_manifests:
            check.num_unchecked += 1  # only its notice tells which files are its own
            continue
        if name not in stored:
            if has_all_files and version in {0, newest}:
                found[version] = [_not_there(store, version, name)]
            missing.append(version)
        elif notice is not None and is_sharded:
            found[version] = _of_shards(check, store, notice)
        else:
            found[version] = _of_file(check, store, name, sha256, notice)
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


def _has_manifests(ledger: LedgerIndex, notices: Iterable[WeightVersion]) -> bool:
    """Whether versions of this run are manifests, by genesis, or where that is missing by the notices."""
    if ledger.genesis is not None:
        return ledger.genesis.weights_identity != "file"
    return any(notice.format == manifest_format for notice in notices)


def _of_shards(check: Check, store: WeightsStore, notice: WeightVersion) -> list[Finding]:
    try:
        store.check(notice)
    except WeightsError as error:
        return [
            Finding(
                message=f"the weights of {notice.name} are not there as noticed",
                record_id=f"version {notice.version}",
                expected=notice.sha256,
                found=str(error),
            )
        ]
    check.num_checked += 1
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
