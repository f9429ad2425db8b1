"""Which files of a weights store belong to one run, so that deleting it takes nothing from another.

| the store | files of the run |
| --- | --- |
| `HOME/weights/RUN`, which no other run names | all with names of weights, unfinished ones as well |
| `X/weights/RUN` of another state directory X, from which this one was copied | none: they are the original's |
| any other, such as `s3://bucket/w` | those that the run's notices lead to, and none of another run with that store |

Versions that are one file are named after their content: two runs that begin with the same model have the same version
0. In a store that they share it stays until the last of them is deleted. Manifests and shards are one run's alone.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from consumers.readable import read_readable
from rollog.kernel.broker.rights import Role
from rollog.kernel.errors import NotAuthorized, TopicMismatch
from rollog.kernel.payloads import PayloadStore
from rollog.kernel.store_owner import local_places, original_of, sharers
from rollog.kernel.weights import WeightsStore
from schemas import WeightVersion

if TYPE_CHECKING:
    from pathlib import Path

    from rollog.kernel.broker.ports import Broker
    from rollog.kernel.broker.topics import RunTopics
    from rollog.settings.settings import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnWeights:
    """The files of one run in its store. `num_others` weights files beside them stay. `payloads` are its objects.

    `original` is the state directory that the store belongs to where that is not the one in use.
    """

    store: WeightsStore
    names: tuple[str, ...]
    num_others: int
    payloads: PayloadStore
    original: Path | None = None

    @classmethod
    def of(cls, broker: Broker, topics: RunTopics, settings: Settings, home: Path) -> OwnWeights:
        """Look at what there is; the topics of the run still tell its versions."""
        folder = (home / "weights" / topics.run).resolve()
        uri = settings.weights.uri or folder.as_uri()
        store = WeightsStore(uri)
        complete, payloads = store.names(), PayloadStore(store, topics)
        original = original_of(store, topics, home)
        if original is not None:
            return cls(store=store, names=(), num_others=len(complete), payloads=payloads, original=original)
        others = sharers(broker, topics, uri)
        if folder in local_places(store) and not others:
            names = (*complete, *store.partial_names())
            return cls(store=store, names=names, num_others=0, payloads=payloads)
        own = _noticed(broker, topics).difference(*(_noticed_beside(broker, topics, of) for of in others))
        names = tuple(store.belonging(own))
        return cls(store=store, names=names, num_others=len(complete) - len(names), payloads=payloads)

    def line(self) -> str:
        """What would be deleted, for a person."""
        if self.original is not None:
            return f"no weights: those in {self.store.public_uri} are of the state directory {self.original} and stay"
        others = (
            f"; {self.num_others} others there are not known as its own and stay" if self.num_others else ""
        )
        objects = f" and {num} objects of large samples" if (num := len(self.payloads.names())) else ""
        return f"{len(self.names)} weights files{objects} in {self.store.public_uri}{others}"

    def delete(self) -> None:
        """Delete the files; those that are gone already are fine."""
        for name in self.names:
            self.store.delete(name)
        if self.original is None:
            self.payloads.delete_all()

    def remove_folder(self) -> None:
        """Remove the directory of the store where it is on this disk, is no other's, and nothing is left in it."""
        if self.original is None:
            self.store.remove_if_empty()


def _noticed_beside(broker: Broker, topics: RunTopics, sharer: RunTopics) -> set[str]:
    """Names in the notices of another run with the same store. Raises NotAuthorized, naming the rights that help."""
    try:
        return _noticed(broker, sharer)
    except NotAuthorized as error:
        principal = broker.principal or "User:NAME"
        raise NotAuthorized(
            f"run {sharer.run} names the store of run {topics.run}, too, and {sharer.weights} may not be read by "
            f"{principal} ({error}): nobody can tell whose a file is, and nothing was deleted; let an administrator of "
            f"the cluster grant the rights of all runs, which `rollog topics acls --prefix {topics.prefix} --principal "
            f"{Role.ADMINISTRATOR}={principal}` prints"
        ) from error


def _noticed(broker: Broker, topics: RunTopics) -> set[str]:
    """Names in the run's notices of weights; none where their topic is gone."""
    with suppress(TopicMismatch):
        notices = read_readable(broker, topics.weights, WeightVersion, client_id="deletion")
        return {notice.name for _, notice in notices}
    return set()
