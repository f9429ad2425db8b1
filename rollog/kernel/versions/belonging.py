"""Which files of a store belong to the versions that notices name: by their names alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rollog.kernel.versions.manifest import manifest_name, shard_name, stem_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable


def belonging(names: Iterable[str], named: Collection[str]) -> list[str]:
    """Those of `names` that belong to `named`, the names in notices: they themselves, and shards of manifests."""
    stems = {stem_of(name) for name in named if manifest_name.fullmatch(name)}
    return [
        name for name in names if name in named or (shard_name.fullmatch(name) and stem_of(name) in stems)
    ]
