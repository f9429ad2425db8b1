"""What of a weights store may be deleted, by what the log names, and deleting it.

Pure but for `delete_files`. Whoever deletes holds the trainer's transactional id, and has committed something since it
knows what may go (`trainer.weights_keeping`, `rollog weights prune`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rollog.kernel.atomic_write import partial_name
from rollog.kernel.crash_points import CrashPoint, reach
from rollog.kernel.versions.belonging import belonging
from rollog.kernel.versions.manifest import manifest_format, version_of
from rollog.rules.kept_weights import kept_versions

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from consumers.named_weights import NamedWeights
    from rollog.kernel.weights import WeightsStore
    from rollog.rules.kept_weights import KeepingRule


def versions_to_prune(
    named: NamedWeights,
    rule: KeepingRule,
    *,
    lag: int,
    checkpoints: Collection[int],
    young: Collection[int] = (),
) -> list[int]:
    """Those that may go, ascending: neither the rule names them, nor is a kept version stored as changes of them."""
    kept = kept_versions(named.stored, rule, lag=lag, checkpoints=checkpoints, young=young)
    return sorted(named.stored.keys() - named.with_bases(kept))


def names_to_delete(
    named: NamedWeights, rule: KeepingRule, *, lag: int, checkpoints: Collection[int]
) -> set[str]:
    """Names in the notices of versions that were pruned and that this rule lets go as well."""
    noticed = {notice.version for notice in named.notices}
    kept = named.with_bases(kept_versions(noticed, rule, lag=lag, checkpoints=checkpoints))
    gone = named.pruned - kept
    return {notice.name for notice in named.notices if notice.version in gone} - named.names


def unnamed(listed: Collection[str], named: NamedWeights) -> list[str]:
    """Those of these files that no notice names, nor can any more.

    A single file is named after its content: before its version is committed, a trainer may still make it again.
    """
    own = set(belonging(listed, {notice.name for notice in named.notices}))
    is_by_content = any(notice.format != manifest_format for notice in named.notices)
    newest = max((notice.version for notice in named.notices), default=-1)
    return [
        name
        for name in listed
        if name not in own
        and (partial_name.fullmatch(name) or not is_by_content or version_of(name) <= newest)
    ]


def delete_files(store: WeightsStore, names: Iterable[str]) -> int:
    """Delete these, manifests first: a version whose manifest is there has its shards. Returns how many.

    Raises WeightsError.
    """
    ordered = sorted(names, key=lambda name: (not name.endswith(".manifest"), name))
    for number, name in enumerate(ordered):
        store.delete(name)
        if number == 0 and len(ordered) > 1:
            reach(CrashPoint.SWEEP_HALF_DONE)
    return len(ordered)
