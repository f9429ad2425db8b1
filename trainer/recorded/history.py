"""A run as its log recorded it: what recovery, replay and counterfactual training read.

Consumes `steps`, `weights` and, by reference, `samples` and `rewards`, through consumers alone; produces nothing. On a
crash it is read again.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import groupby
from typing import TYPE_CHECKING

from consumers.ledger import LedgerEntry, StoredLedger, ledger_entry
from consumers.references import read_referenced
from rollog.kernel.broker.ports import TopicPartition
from rollog.kernel.broker.reading import read_until
from rollog.kernel.errors import LedgerError
from rollog.rules.ledger_state import LedgerState
from schemas import Disposition, Genesis, Rebase, Step
from trainer.publishing import new_identity

if TYPE_CHECKING:
    from rollog.kernel.broker.ports import Broker, Consumer
    from rollog.kernel.broker.topics import RunTopics
    from rollog.kernel.payloads import PayloadStore
    from schemas import LedgerRecord, Sample


@dataclass(slots=True, kw_only=True)
class History:
    """The ledger as far as it was read: its fold, and where the records stand that are read again.

    `steps` maps a version to the offset of the step that made it, `rebases` are the versions that rebases made, `end`
    is the offset behind the last record. Of the records themselves only genesis is kept.

    A trainer that publishes beside training is one step ahead: `state` then is the ledger with the step that it has
    sealed, which is committed later. Everything else is as far as it is committed.
    """

    state: LedgerState = field(default_factory=LedgerState)
    first: LedgerRecord | None = None
    steps: dict[int, int] = field(default_factory=dict)
    rebases: set[int] = field(default_factory=set)
    num_optimizer_steps: int = 0
    end: int = 0
    is_sealed: bool = False

    @property
    def committed_version(self) -> int:
        """The newest version that is committed; -1 without genesis."""
        return self.state.version - self.is_sealed

    @property
    def genesis(self) -> Genesis | None:
        """What the run began with; None while the ledger is empty."""
        body = None if self.first is None else self.first.body
        return body if isinstance(body, Genesis) else None

    @property
    def weights_identity(self) -> str:
        """What a sha256 of weights is of, in this run; of one that has not begun, what it will be of."""
        return new_identity if self.genesis is None else self.genesis.weights_identity

    def add(self, entry: LedgerEntry) -> None:
        """Fold one more record. Raises LedgerError where it does not follow."""
        assert not self.is_sealed, "nothing is committed before the step that was sealed"
        self.state.apply(entry.record, entry.digest)
        self._place(entry)

    def seal(self, record: LedgerRecord) -> None:
        """Fold a step that is committed later, without the digest of its weights. Raises LedgerError."""
        assert not self.is_sealed, "one step is ahead at most"
        self.state.seal(record)
        self.is_sealed = True

    def land(self, entry: LedgerEntry) -> None:
        """The step that was sealed is committed."""
        assert self.is_sealed
        self.state.land(entry.record, entry.digest)
        self.is_sealed = False
        self._place(entry)

    def _place(self, entry: LedgerEntry) -> None:
        record = entry.record
        match record.body:
            case Genesis():
                self.first = record
            case Step() as body:
                self.steps[record.version] = entry.offset
                self.num_optimizer_steps += len(body.learning_rates)
            case Rebase():
                self.rebases.add(record.version)
        self.end = entry.offset + 1

    def read_on(self, broker: Broker, topics: RunTopics) -> None:
        """Read the ledger to its end. Raises LedgerError where its chain is broken."""
        for entry in StoredLedger(broker, topics, begin=self.end, state=self.state):
            self.add(entry)

    def continued_as(self, version: int) -> int:
        """The version that training went on from after `version` was made: that of rebases right behind it, if any."""
        while version + 1 in self.rebases:
            version += 1
        return version

    def is_superseded(self, version: int) -> bool:
        """Whether a later rebase, not right behind `version`, gave the run other weights than its steps had."""
        return max(self.rebases, default=0) > self.continued_as(version)

    def read_step(self, consumer: Consumer, steps_topic: str, version: int) -> LedgerEntry:
        """The recorded step that made `version`, read again. Raises LedgerError where none did, or it is gone."""
        offset = self.steps.get(version)
        if offset is None:
            made = f"versions 1 to {max(self.steps)}" if self.steps else "no version yet"
            raise LedgerError(f"no recorded step made version {version}; the recorded steps made {made}")
        place = TopicPartition(steps_topic, 0)
        for record in read_until(consumer, {place: offset}, {place: offset + 1}):
            entry = ledger_entry(record)
            body = entry.record.body
            if isinstance(body, Step) and body.weights_sha256 == self.state.weights[version]:
                return entry
        raise LedgerError(
            f"{steps_topic}, offset {offset}, does not hold the step of version {version} any more; restore the topic"
        )


def read_history(broker: Broker, topics: RunTopics) -> History:
    """Read the ledger from its beginning to its end. Raises LedgerError where its chain is broken."""
    history = History()
    history.read_on(broker, topics)
    return history


def recorded_groups(
    entry: LedgerEntry, consumer: Consumer, topics: RunTopics, payloads: PayloadStore
) -> list[list[Sample]]:
    """The groups that one recorded step trained, in training order, read again by its references.

    Raises LedgerError, PayloadStoreSilent.
    """
    trained = [verdict for verdict in entry.record.verdicts if verdict.disposition is Disposition.TRAINED]
    samples = read_referenced(consumer, topics, trained, payloads)
    return [
        [samples[(verdict.partition, verdict.offset)] for verdict in members]
        for _, members in groupby(trained, key=lambda verdict: verdict.group_id)
    ]
