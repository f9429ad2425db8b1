"""Whose the files of a weights store are, so that one run deletes nothing of another.

| the store | what the run's rule lets go | files that nobody names |
| --- | --- | --- |
| a folder called RUN that no other run names | deleted | deleted |
| `X/weights/RUN` of a state directory X that has the run, too: this one is a copy | stay: they are X's | stay |
| one that another run names | deleted; single files stay | stay |
| any other, such as `s3://bucket/w` | deleted | stay |

Versions that are one file are named after their content: two runs may name one file.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from rollog.kernel.addresses import public_address
from rollog.kernel.broker.topics import RunTopics
from rollog.kernel.runs import read_runs

if TYPE_CHECKING:
    from rollog.kernel.broker.ports import Broker
    from rollog.kernel.weights import WeightsStore


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreRights:
    """What of a store a run may delete; `reason` says why it may not delete all that it needs no longer."""

    may_prune: bool
    may_sweep: bool
    reason: str = ""


def store_rights(
    broker: Broker, topics: RunTopics, store: WeightsStore, home: Path, *, is_by_content: bool
) -> StoreRights:
    """What the run may delete in its store; `is_by_content` where versions are single files."""
    original = living_original_of(store, topics, home)
    if original is not None:
        return StoreRights(
            may_prune=False,
            may_sweep=False,
            reason=f"{store.public_uri} is of the state directory {original}, from which this one was copied",
        )
    others = sharers(broker, topics, store.uri)
    if others:
        return StoreRights(
            may_prune=not is_by_content,
            may_sweep=False,
            reason=f"run {others[0].run} names {store.public_uri}, too",
        )
    if not _is_called_after(store, topics):
        return StoreRights(
            may_prune=True,
            may_sweep=False,
            reason=f"the last part of {store.public_uri} is not the name of the run, so others may use it",
        )
    return StoreRights(may_prune=True, may_sweep=True)


def _is_called_after(store: WeightsStore, topics: RunTopics) -> bool:
    return store.filesystem[1].rstrip("/").rsplit("/", 1)[-1] == topics.run


def living_original_of(store: WeightsStore, topics: RunTopics, home: Path) -> Path | None:
    """As `original_of`, where the run is still in the state directory that the store belongs to."""
    original = original_of(store, topics, home)
    return original if original is not None and (original / "runs" / topics.run).exists() else None


def original_of(store: WeightsStore, topics: RunTopics, home: Path) -> Path | None:
    """The state directory that a store belongs to where `home` is a copy of that one; None where it is not."""
    folder = (home / "weights" / topics.run).resolve()
    places = local_places(store)
    if folder in places:
        return None
    return next((place.parent.parent for place in places if place.parts[-2:] == folder.parts[-2:]), None)


def local_places(store: WeightsStore) -> set[Path]:
    """Where the store is on this disk, by its address and by what fsspec makes of it; nothing for one elsewhere."""
    found = (store.directory, path_of(store.uri))
    return {each.resolve() for each in found if each is not None} if store.is_local else set()


def sharers(broker: Broker, topics: RunTopics, uri: str) -> list[RunTopics]:
    """Other runs of the prefix whose manifests name the store that this one uses or was begun with."""
    registered = read_runs(broker, topics.prefix)
    begun = registered.pop(topics.run, None)
    stores = {_comparable(uri), _comparable(uri if begun is None else begun.weights_uri)}
    return [
        RunTopics(topics.prefix, run)
        for run, manifest in registered.items()
        if _comparable(manifest.weights_uri) in stores
    ]


def path_of(uri: str) -> Path | None:
    """The path that a `file://` address, or a plain path, names; None for any other address."""
    try:
        parts = urlsplit(uri)
    except ValueError:
        return None
    if not parts.scheme and "::" not in uri:
        return Path(uri)
    return Path(unquote(parts.path)) if parts.scheme == "file" and not parts.netloc else None


def _comparable(uri: str) -> str:
    path = path_of(uri)
    return public_address(uri).rstrip("/") if path is None else str(path.resolve())
