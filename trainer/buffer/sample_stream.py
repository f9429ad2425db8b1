"""The trainer's view of `samples`: headers for judging, payloads kept until they are disposed of.

Consumes `samples` (read_committed, assigned by hand from the ledger's low-water marks). Records that cannot be
decoded or validated come out as dead headers together with the dead letter that goes into the same transaction
as their verdict. On a crash nothing is lost: the next trainer reads again from the low-water marks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rollog.kernel.broker.ports import TopicPartition
from rollog.kernel.errors import TopicMismatch
from rollog.rules.dead_letters import DeadLetterLimit, dead_letter
from rollog.rules.reading import read_sample
from schemas import Status

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from types import TracebackType
    from typing import Self

    from rollog.kernel.broker.ports import Broker, Record
    from rollog.rules.headers import SampleHeader, SampleLimits
    from schemas import DeadLetter, Sample

Place = tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumedSample:
    """One record of `samples`: its header, and its payload or the dead letter it becomes."""

    header: SampleHeader
    sample: Sample | None
    dead_letter: DeadLetter | None = None


def consume(record: Record, limits: SampleLimits) -> ConsumedSample:
    """Decode and validate one record; what is wrong with it is in the header's `defect`."""
    header, sample = read_sample(record, limits)
    letter = None if header.defect is None else _letter(record, header)
    return ConsumedSample(header=header, sample=sample, dead_letter=letter)


class SampleStream:
    """Reads samples and holds their payloads by place until `release`.

    `newest_failure` is what the newest failed sample says of its error; None while there was none.
    """

    def __init__(
        self,
        broker: Broker,
        topic: str,
        low_water_marks: Sequence[int],
        *,
        group_id: str,
        limits: SampleLimits,
        max_dead_letters_in_a_row: int,
    ) -> None:
        self._topic = topic
        self._limit = DeadLetterLimit(max_dead_letters_in_a_row)
        self._limits = limits
        self._partitions = [TopicPartition(topic, number) for number in range(len(low_water_marks))]
        self._consumer = broker.consumer(client_id="trainer-samples", group_id=group_id)
        self._held: dict[Place, ConsumedSample] = {}
        self.newest_failure: str | None = None
        self._check_retained(low_water_marks)
        self._consumer.assign(dict(zip(self._partitions, low_water_marks, strict=True)))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the consumer."""
        self._consumer.close()

    def poll(self, timeout_seconds: float) -> list[ConsumedSample]:
        """What arrived, in offset order per partition; payloads stay held until released.

        Raises DecodeError for a flood of dead letters.
        """
        return [self._take(record) for record in self._consumer.poll(timeout_seconds)]

    def _take(self, record: Record) -> ConsumedSample:
        item = consume(record, self._limits)
        if item.header.defect is None:
            self._limit.good(record.topic)
        else:
            self._limit.dead(record, item.header.defect)
        self._held[item.header.place] = item
        if item.sample is not None and item.sample.status is Status.FAILED:
            self.newest_failure = f"{item.sample.error_class}: {item.sample.error_message}"
        return item

    @property
    def positions(self) -> tuple[int, ...]:
        """Next offset to read, per partition."""
        return tuple(self._consumer.position(partition) for partition in self._partitions)

    def end_offsets(self) -> tuple[int, ...]:
        """End of each partition, fetched now."""
        ends = self._consumer.end_offsets(self._partitions)
        return tuple(ends[partition] for partition in self._partitions)

    def samples(self, headers: Iterable[SampleHeader]) -> list[Sample]:
        """Payloads of finished samples that are still held, in the given order."""
        held = [self._held[header.place].sample for header in headers]
        return [sample for sample in held if sample is not None]

    def dead_letters(self, places: Iterable[Place]) -> list[DeadLetter]:
        """Dead letters among these places."""
        letters = (self._held[place].dead_letter for place in places if place in self._held)
        return [letter for letter in letters if letter is not None]

    def release(self, places: Iterable[Place]) -> None:
        """Forget payloads whose verdict is committed."""
        for place in places:
            self._held.pop(place, None)

    def _check_retained(self, low_water_marks: Sequence[int]) -> None:
        beginnings = self._consumer.beginning_offsets(self._partitions)
        for partition, mark in zip(self._partitions, low_water_marks, strict=True):
            if beginnings[partition] > mark:
                raise TopicMismatch(
                    f"{self._topic}, partition {partition.partition}: samples from offset {mark} to "
                    f"{beginnings[partition] - 1} have no disposition and are no longer in the topic; raise its "
                    "retention (retention.ms=-1) and restore them from a replica, or start a new run"
                )


def _letter(record: Record, header: SampleHeader) -> DeadLetter:
    error_class = "SchemaError" if header.status is None else "InvalidSample"
    return dead_letter(record, reason=header.defect or "", error_class=error_class, owner="trainer")
