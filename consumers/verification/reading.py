"""Reading the chosen samples by the references of the ledger, a ledger record at a time.

Consumes `samples`, by place. A record that is gone, or is not the one that was judged, is passed over and named.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from consumers.verification.order import Part
from consumers.verification.pieces import pieces_of
from rollog.kernel.broker.ports import TopicPartition
from rollog.kernel.broker.reading import read_until
from rollog.rules.headers import record_digest
from schemas import Disposition, Sample
from schemas.codec import SchemaError, decode_as

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from consumers.verification.pieces import Piece
    from consumers.verification.selection import ChosenRecords
    from rollog.kernel.broker.ports import Consumer
    from schemas import Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Unread:
    """A chosen record that could not be taken, and why."""

    sample_id: str
    partition: int
    offset: int
    reason: str


@dataclass(slots=True)
class ChosenSamples:
    """Reads what was chosen; afterwards it says how many samples it gave and what it had to leave out."""

    consumer: Consumer
    topic: str
    num_samples: int = 0
    unread: list[Unread] = field(default_factory=list)

    def parts(self, chosen: Sequence[ChosenRecords]) -> Iterator[Part]:
        """The pieces of each ledger record."""
        for records in chosen:
            pieces = [piece for verdict, value in self._values(records) for piece in self._pieces(verdict, value)]
            yield Part(pieces=pieces, complete_below=records.complete_below)

    def _values(self, records: ChosenRecords) -> Iterator[tuple[Verdict, bytes]]:
        for number in sorted({verdict.partition for verdict in records.verdicts}):
            wanted = {verdict.offset: verdict for verdict in records.verdicts if verdict.partition == number}
            partition = TopicPartition(self.topic, number)
            begin = self.consumer.beginning_offsets([partition])[partition]
            start, end = max(begin, min(wanted)), max(wanted) + 1
            if start < end:
                for record in read_until(self.consumer, {partition: start}, {partition: end}):
                    if (verdict := wanted.pop(record.offset, None)) is not None:
                        yield verdict, record.value or b""
            for verdict in wanted.values():
                self._leave_out(verdict, "it is no longer in the topic")

    def _pieces(self, verdict: Verdict, value: bytes) -> list[Piece]:
        if record_digest(value) != verdict.digest:
            self._leave_out(verdict, "it is not the record that was judged; `rollog audit` says more")
            return []
        try:
            sample = decode_as(Sample, value)
        except SchemaError as error:
            if verdict.disposition is not Disposition.DEAD:
                self._leave_out(verdict, f"it cannot be decoded: {error}")
            return []
        pieces = pieces_of(sample, verdict.partition, verdict.offset)
        self.num_samples += bool(pieces)
        return pieces

    def _leave_out(self, verdict: Verdict, reason: str) -> None:
        self.unread.append(
            Unread(
                sample_id=verdict.sample_id,
                partition=verdict.partition,
                offset=verdict.offset,
                reason=reason,
            )
        )
