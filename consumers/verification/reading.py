"""Reading the chosen samples by the references of the ledger, a ledger record at a time.

Consumes `samples`, by place, once. A record that is gone is passed over and named; so is one that is not the one that
was judged, and that is off. Arrays of large ones come from the objects that they name.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from consumers.references import spans, whole_sample
from consumers.verification.order import Part
from consumers.verification.pieces import pieces_of
from rollog.kernel.broker.reading import read_until
from rollog.kernel.errors import PayloadError
from rollog.rules.headers import record_digest
from schemas import Disposition, Sample
from schemas.codec import SchemaError, decode_as

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from consumers.verification.pieces import Piece
    from consumers.verification.selection import ChosenRecords
    from rollog.kernel.broker.ports import Consumer, TopicPartition
    from rollog.kernel.payloads import PayloadStore
    from schemas import Verdict


Place = tuple[int, int]
"""Partition and offset."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unread:
    """A chosen record that could not be taken, and why."""

    sample_id: str
    partition: int
    offset: int
    reason: str

    def __str__(self) -> str:
        return f"sample {self.sample_id} (partition {self.partition}, offset {self.offset}): {self.reason}"


class ChosenSamples:
    """Reads what was chosen; afterwards it says how many samples it gave, and names the others.

    `altered` are those whose bytes are not those that were judged, `unread` those that are gone or cannot be decoded.
    """

    def __init__(self, consumer: Consumer, topic: str, payloads: PayloadStore) -> None:
        self._consumer = consumer
        self._payloads = payloads
        self._topic = topic
        self.num_samples = 0
        self.unread: list[Unread] = []
        self.altered: list[Unread] = []

    def parts(self, chosen: Sequence[ChosenRecords]) -> Iterator[Part]:
        """The pieces of each ledger record."""
        places = [_place(verdict) for records in chosen for verdict in records.verdicts]
        values = _OnePass(self._consumer, self._topic, places)
        for records in chosen:
            pieces = [
                piece
                for verdict in records.verdicts
                for piece in self._pieces(verdict, values.take(_place(verdict)))
            ]
            yield Part(pieces=pieces, complete_below=records.complete_below)

    def _pieces(self, verdict: Verdict, value: bytes | None) -> list[Piece]:
        if value is None:
            self.unread.append(_unread(verdict, "it is no longer in the topic"))
            return []
        if record_digest(value) != verdict.digest:
            self.altered.append(
                _unread(verdict, "it is not the record that was judged; `rollog audit` says more")
            )
            return []
        try:
            sample = decode_as(Sample, value)
        except SchemaError as error:
            if verdict.disposition is not Disposition.DEAD:
                self.unread.append(_unread(verdict, f"it cannot be decoded: {error}"))
            return []
        try:
            sample = whole_sample(sample, self._payloads)
        except (PayloadError, SchemaError) as error:
            if verdict.disposition is not Disposition.DEAD:
                self.unread.append(_unread(verdict, f"its arrays cannot be read: {error}"))
            return []
        pieces = pieces_of(sample, verdict.partition, verdict.offset)
        self.num_samples += bool(pieces)
        return pieces


class _OnePass:
    """The values of wanted records, all partitions read once and side by side.

    The ledger names records nearly in the order in which they were written, so few wait to be taken.
    """

    def __init__(self, consumer: Consumer, topic: str, wanted: Sequence[Place]) -> None:
        self._wanted = set(wanted)
        self._waiting: dict[Place, bytes] = {}
        self._passed: dict[int, int] = {}
        self._records = read_until(consumer, *_spans(consumer, topic, wanted))

    def take(self, place: Place) -> bytes | None:
        """The value of one wanted record, each once; None where it is gone."""
        partition, offset = place
        while place not in self._waiting and self._passed.get(partition, -1) < offset:
            record = next(self._records, None)
            if record is None:
                break
            self._passed[record.partition] = record.offset
            if (record.partition, record.offset) in self._wanted:
                self._waiting[record.partition, record.offset] = record.value or b""
        return self._waiting.pop(place, None)


def _spans(
    consumer: Consumer, topic: str, wanted: Sequence[Place]
) -> tuple[dict[TopicPartition, int], dict[TopicPartition, int]]:
    """Where to begin and to end in each partition, within what is still there."""
    starts, ends = spans(topic, wanted)
    there = {place: max(starts[place], begin) for place, begin in consumer.beginning_offsets(starts).items()}
    starts = {place: start for place, start in there.items() if start < ends[place]}
    return starts, {place: ends[place] for place in starts}


def _unread(verdict: Verdict, reason: str) -> Unread:
    return Unread(
        sample_id=verdict.sample_id, partition=verdict.partition, offset=verdict.offset, reason=reason
    )


def _place(verdict: Verdict) -> Place:
    return verdict.partition, verdict.offset
