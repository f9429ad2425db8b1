"""The weights that a run's log names: every notice of a version of the ledger, and which versions were let go.

Consumes `weights`. Anybody may be able to write there, so a notice counts where the ledger has its digest, and what is
said to be pruned where the trainer can have said it: never version 0, nor the newest version noticed until then.

    offset 0  WeightVersion 0
           1  WeightVersion 1
           2  WeightVersion 2
           3  WeightsPruned [1]     1 is pruned from here on
           4  WeightVersion 2       again: the store had lost it; the last notice counts
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rollog.kernel.broker.reading import read_to_end
from rollog.kernel.errors import LedgerError, VersionPruned, WeightsError
from schemas import WeightsPruned, WeightVersion
from schemas.codec import SchemaError, decode

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from rollog.kernel.broker.ports import Broker, Record
    from rollog.kernel.broker.topics import RunTopics


@dataclass(slots=True)
class NamedWeights:
    """What was read so far. `weights` are the digests of the ledger, by version.

    `notices` are in the order of the log, those of pruned versions among them: they tell which files were theirs.
    `stored` has the last notice of every version that was not pruned. Where `num_unreadable` is not 0, somebody else,
    or a later release, may have named files in a way that is not known here.
    """

    weights: Mapping[int, str]
    notices: list[WeightVersion] = field(default_factory=list)
    stored: dict[int, WeightVersion] = field(default_factory=dict)
    pruned: set[int] = field(default_factory=set)
    num_unreadable: int = 0
    _newest: int = -1

    def add(self, record: object) -> None:
        """One record of `weights`, decoded; what does not count changes nothing."""
        match record:
            case WeightVersion(version=version, sha256=sha256) if self.weights.get(version) == sha256:
                self.notices.append(record)
                self.stored[version] = record
                self.pruned.discard(version)
                self._newest = max(self._newest, version)
            case WeightsPruned(versions=versions):
                for version in versions:
                    if version in self.stored and 0 < version < self._newest:
                        del self.stored[version]
                        self.pruned.add(version)

    @property
    def names(self) -> set[str]:
        """Names in all notices of versions that were not pruned: their files stay."""
        return {notice.name for notice in self.notices if notice.version not in self.pruned}

    @property
    def pruned_names(self) -> set[str]:
        """Names in the notices of pruned versions alone."""
        return {notice.name for notice in self.notices} - self.names

    def with_bases(self, versions: Collection[int]) -> set[int]:
        """These versions and all that they are stored as changes of: what must stay, that they can be rebuilt."""
        of_version: dict[int, list[WeightVersion]] = {}
        for notice in self.notices:
            of_version.setdefault(notice.version, []).append(notice)
        # Of a version that stays by itself every form; of a base the one that is named, and without a name every one.
        left = [notice for version in versions for notice in of_version.get(version, [])]
        found, names = set(versions), set[str]()
        while left:
            notice = left.pop()
            if notice.name in names:
                continue
            names.add(notice.name)
            if (base := notice.base) is not None:
                found.add(base.version)
                forms = of_version.get(base.version, [])
                left += [form for form in forms if form.name == base.name] or forms
        return found

    def get(self, version: int) -> WeightVersion | None:
        """The last notice of a version; None for one that was pruned or never noticed."""
        return self.stored.get(version)

    def of(self, version: int) -> WeightVersion:
        """The last notice of a version. Raises VersionPruned, or WeightsError where no notice names it."""
        if version in self.pruned:
            raise VersionPruned(
                f"the weights of version {version} were pruned: the run keeps those that its rule names "
                "(`rollog weights list`); name one of these, or replay the run, which makes them again"
            )
        notice = self.get(version)
        if notice is None:
            raise WeightsError(f"no notice names the weights that the ledger has under version {version}")
        return notice


def read_named_weights(broker: Broker, topics: RunTopics, weights: Mapping[int, str]) -> NamedWeights:
    """Read `weights` to its end. Records that cannot be decoded are passed over, as workers do."""
    named = NamedWeights(weights)
    with broker.consumer(client_id="named-weights") as consumer:
        for record in read_to_end(consumer, topics.weights, 0):
            try:
                named.add(decode(record.value or b""))
            except SchemaError:
                named.num_unreadable += 1
    return named


def initial_weights(broker: Broker, topics: RunTopics, weights: Mapping[int, str]) -> WeightVersion:
    """The last notice of version 0. Raises LedgerError when it is missing."""
    notice = read_named_weights(broker, topics, weights).get(0)
    if notice is None:
        raise LedgerError(
            f"{topics.weights} holds no notice of version 0 with sha256 {weights[0]}; restore the topic"
        )
    return notice


def pruned_in(records: Iterable[Record]) -> set[int]:
    """The versions that any of these records lets go."""
    found: set[int] = set()
    for record in records:
        with suppress(SchemaError):
            decoded = decode(record.value or b"")
            if isinstance(decoded, WeightsPruned):
                found.update(decoded.versions)
    return found
