"""A run as its log recorded it: what recovery, replay and counterfactual training read.

Consumes `steps`, `weights` and, by reference, `samples`, through consumers alone; produces nothing. On a crash it is
read again.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING

from consumers.ledger import LedgerEntry, read_ledger
from consumers.references import read_referenced
from rollog.kernel.broker.reading import read_to_end
from rollog.kernel.errors import LedgerError
from rollog.rules.ledger_state import LedgerState
from schemas import Disposition, Genesis, Rebase, Step, WeightVersion
from schemas.codec import decode_as

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rollog.kernel.broker.ports import Broker, Consumer
    from rollog.kernel.broker.topics import RunTopics
    from schemas import Sample


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """The ledger as read: its fold, the steps by the version they made, and the versions that rebases made."""

    state: LedgerState
    genesis: Genesis | None
    steps: dict[int, LedgerEntry]
    rebases: frozenset[int] = frozenset()

    def continued_as(self, version: int) -> int:
        """The version that training went on from after `version` was made: that of rebases right behind it, if any."""
        while version + 1 in self.rebases:
            version += 1
        return version

    def is_superseded(self, version: int) -> bool:
        """Whether a later rebase, not right behind `version`, gave the run other weights than its steps had."""
        return max(self.rebases, default=0) > self.continued_as(version)

    def step(self, version: int) -> Step:
        """The recorded step that made `version`. Raises LedgerError where no step made it."""
        entry = self.steps.get(version)
        if entry is None or not isinstance(entry.record.body, Step):
            made = f"versions 1 to {max(self.steps)}" if self.steps else "no version yet"
            raise LedgerError(f"no recorded step made version {version}; the recorded steps made {made}")
        return entry.record.body


def read_history(broker: Broker, topics: RunTopics) -> History:
    """Read the ledger to its end. Raises LedgerError where its chain is broken."""
    state = LedgerState()
    genesis: Genesis | None = None
    steps: dict[int, LedgerEntry] = {}
    rebases: set[int] = set()
    for entry in read_ledger(broker, topics):
        state.apply(entry.record, entry.digest)
        match entry.record.body:
            case Genesis() as body:
                genesis = body
            case Step():
                steps[entry.record.version] = entry
            case Rebase():
                rebases.add(entry.record.version)
    return History(state=state, genesis=genesis, steps=steps, rebases=frozenset(rebases))


def read_notices(broker: Broker, topics: RunTopics, ledger: LedgerState) -> dict[int, WeightVersion]:
    """The committed notices of the weights that the ledger names, by version."""
    return {notice.version: notice for notice in _notices(broker, topics, ledger)}


def initial_weights(broker: Broker, topics: RunTopics, ledger: LedgerState) -> WeightVersion:
    """The committed notice of version 0. Raises LedgerError when it is missing."""
    for notice in _notices(broker, topics, ledger):
        if notice.version == 0:
            return notice
    raise LedgerError(
        f"{topics.weights} holds no notice of version 0 with sha256 {ledger.weights[0]}; restore the topic"
    )


def _notices(broker: Broker, topics: RunTopics, ledger: LedgerState) -> Iterator[WeightVersion]:
    with broker.consumer(client_id="trainer-weights") as consumer:
        for record in read_to_end(consumer, topics.weights, 0):
            notice = decode_as(WeightVersion, record.value or b"")
            if ledger.weights.get(notice.version) == notice.sha256:
                yield notice


def recorded_groups(entry: LedgerEntry, consumer: Consumer, samples_topic: str) -> list[list[Sample]]:
    """The groups that one recorded step trained, in training order, read again from `samples` by its references."""
    trained = [verdict for verdict in entry.record.verdicts if verdict.disposition is Disposition.TRAINED]
    samples = read_referenced(consumer, samples_topic, trained)
    return [
        [samples[(verdict.partition, verdict.offset)] for verdict in members]
        for _, members in groupby(trained, key=lambda verdict: verdict.group_id)
    ]
