"""The trainer's one way to write: a transaction that holds all consequences of a decision, or none.

Produces, in one Kafka transaction: the ledger record (steps), the notice of the weights it made (weights), dead
letters for samples it found dead (dead-letters), and the low-water marks as the trainer group's offsets.
Waits for every acknowledgement before the commit. On crash the broker aborts what was open, at the latest when the
next trainer fences this one. A time-out leaves the outcome unknown, so the caller must exit and recover from the
ledger. Where the broker takes nothing more, `control` says whether another trainer took over (`rollog.rules.epochs`).
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

from consumers.ledger import LedgerEntry
from rollog.kernel.broker.ports import TopicPartition
from rollog.kernel.crash_points import CrashPoint, reach
from rollog.kernel.errors import BrokerTimeout, ProducerFenced, RecordTooLarge
from rollog.kernel.lifecycle import Component
from rollog.rules.epochs import taken_epoch, why_ended
from rollog.rules.ledger_state import record_hash
from schemas import TrainerEpoch, WeightVersion
from schemas.codec import encode
from schemas.headers import headers_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rollog.kernel.broker.ports import Broker
    from rollog.kernel.broker.topics import RunTopics
    from schemas import DeadLetter, LedgerRecord, WeightsPruned

framing_allowance_bytes = 4096
"""Room for Kafka's own framing and headers below a topic's size limit."""


class LedgerWriter(Component):
    """Commits ledger records under the run's trainer id and an epoch of its own.

    Creating one fences every earlier trainer, then commits the next epoch to `control`. Raises Superseded or Expired
    where another one does so meanwhile, BrokerTimeout where the broker does not answer.
    """

    def __init__(
        self,
        broker: Broker,
        topics: RunTopics,
        *,
        transaction_timeout_seconds: float,
        max_record_bytes: int,
    ) -> None:
        self._broker = broker
        self._topics = topics
        self._commit_seconds = transaction_timeout_seconds
        self._max_bytes = max_record_bytes - framing_allowance_bytes
        self._producer = broker.transactional_producer(
            topics.trainer_transactional_id,
            topics=[topics.control, topics.steps, topics.weights, topics.dead_letters],
            transaction_timeout_seconds=transaction_timeout_seconds,
        )
        unnumbered = TrainerEpoch(epoch=0, trainer_id=f"trainer-{secrets.token_hex(4)}")
        try:
            self.epoch = taken_epoch(broker, topics.control, self._producer, unnumbered)
        except BaseException:
            self._producer.close()  # nobody else knows of it yet
            raise

    def close(self) -> None:
        """Close the producer."""
        self._producer.close()

    def commit(
        self,
        record: LedgerRecord,
        *,
        weights: Sequence[WeightVersion] = (),
        dead_letters: Sequence[DeadLetter] = (),
    ) -> LedgerEntry:
        """Commit one ledger record and what belongs to it; returns the record with its place and hash.

        `weights`, all forms of the version that the record makes, must be durable already. Raises RecordTooLarge before
        anything is sent; BrokerTimeout (outcome unknown: exit and recover), Superseded (never restart) or Expired
        (start again).
        """
        value = self._encoded(record)
        try:
            offset = self._transact(record, value, weights, dead_letters)
        except (ProducerFenced, BrokerTimeout) as error:
            # Who was suspended in a commit only knows that time has passed; the log knows of a successor.
            raise why_ended(self._broker, self._topics.control, self.epoch, error) from error
        return LedgerEntry(record=record, offset=offset, digest=record_hash(value))

    def announce(self, record: WeightVersion | WeightsPruned) -> None:
        """Commit another notice of weights that the ledger has, which were published again, or what is let go.

        Raises BrokerTimeout, Superseded or Expired as `commit` does.
        """
        producer = self._producer
        try:
            producer.begin()
            self._send_of_weights(record)
            producer.commit(self._commit_seconds)
        except (ProducerFenced, BrokerTimeout) as error:
            raise why_ended(self._broker, self._topics.control, self.epoch, error) from error

    def _send_of_weights(self, record: WeightVersion | WeightsPruned) -> None:
        key = str(record.version).encode() if isinstance(record, WeightVersion) else None
        self._producer.send(self._topics.weights, 0, encode(record), key=key, headers=headers_of(record))

    def _transact(
        self,
        record: LedgerRecord,
        value: bytes,
        weights: Sequence[WeightVersion],
        dead_letters: Sequence[DeadLetter],
    ) -> int:
        producer = self._producer
        producer.begin()
        reach(CrashPoint.TRANSACTION_OPEN)
        sent = producer.send(self._topics.steps, 0, value, headers=headers_of(record))
        for notice in weights:
            self._send_of_weights(notice)
        for letter in dead_letters:
            producer.send(self._topics.dead_letters, 0, encode(letter), headers=headers_of(letter))
        producer.send_offsets(
            {
                TopicPartition(self._topics.samples, partition): offset
                for partition, offset in enumerate(record.low_water_marks)
            },
            self._topics.trainer_group,
        )
        reach(CrashPoint.FUTURES_PENDING)
        producer.commit(self._commit_seconds)
        reach(CrashPoint.COMMIT_SENT)
        return sent.offset(timeout_seconds=0.0)

    def _encoded(self, record: LedgerRecord) -> bytes:
        value = encode(record)
        if len(value) > self._max_bytes:
            raise RecordTooLarge(
                f"ledger record {record.sequence} ({record.kind}) with {len(record.verdicts)} verdicts has "
                f"{len(value)} bytes, more than {self._max_bytes}; raise broker.max_record_bytes or lower "
                "groups.groups_per_batch"
            )
        return value
