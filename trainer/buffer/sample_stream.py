"""The trainer's view of `samples`: headers come out for judging, payloads are kept until they are disposed of.

Consumes `samples` (read_committed, assigned by hand from the ledger's low-water marks). Records that cannot be
decoded or validated come out as dead headers; the dead letter of each is kept, it goes into the same transaction as
their verdict. A sample whose arrays stand in an object of the store comes out when these were fetched and checked
(`trainer.buffer.payload_fetches`); others overtake it. On a crash nothing is lost: the next trainer reads again from
the low-water marks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from rollog.kernel.broker.ports import TopicPartition
from rollog.kernel.errors import TopicMismatch
from rollog.kernel.lifecycle import Component
from rollog.rules.dead_letters import DeadLetterLimit, dead_letter
from rollog.rules.late_rewards import rewarded
from rollog.rules.reading import read_sample
from schemas import Status

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from rollog.kernel.broker.ports import Broker, Record
    from rollog.rules.headers import SampleHeader, SampleLimits
    from schemas import DeadLetter, Sample
    from trainer.buffer.payload_fetches import PayloadFetches

    _Arrived = tuple[Record, SampleHeader, Sample | None]

Place = tuple[int, int]


class Origins(Protocol):
    """What tells whether a sample is one that the run ordered; `trainer.control` does."""

    def can_place(
        self, arrived: Iterable[tuple[SampleHeader, Sample | None]], timeout_seconds: float
    ) -> bool:
        """Whether enough was read to say where these come from."""
        ...

    def placed(self, header: SampleHeader, sample: Sample | None) -> SampleHeader:
        """The header as it counts."""
        ...


class SampleStream(Component):
    """Reads samples and holds finished ones, and dead letters, by place until `release`; headers are the buffer's.

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
        origins: Origins,
        payloads: PayloadFetches,
        max_dead_letters_in_a_row: int,
        max_record_bytes: int = 16 << 20,
    ) -> None:
        self._topic = topic
        self._limit = DeadLetterLimit(max_dead_letters_in_a_row)
        self._most_record_bytes = max_record_bytes
        self._limits = limits
        self._origins = origins
        self._payloads = payloads
        self._waiting: list[_Arrived] = []
        self._partitions = [TopicPartition(topic, partition) for partition in range(len(low_water_marks))]
        self._consumer = broker.consumer(client_id="trainer-samples", group_id=group_id)
        self._finished: dict[Place, Sample] = {}
        self._dead_letters: dict[Place, DeadLetter] = {}
        self.newest_failure: str | None = None
        self._consumer.assign(dict(zip(self._partitions, low_water_marks, strict=True)))

    def close(self) -> None:
        """Close the consumer, and fetch nothing more."""
        self._payloads.close()
        self._consumer.close()

    def poll(self, timeout_seconds: float) -> list[SampleHeader]:
        """Headers of what arrived, in offset order per partition but for samples whose objects were not there at once.

        None while it is not known where samples come from. Nothing more is read meanwhile, so what waits is bounded by
        one poll, and by `PayloadFetches`. Raises DecodeError for a flood of dead letters.
        """
        at_hand = self._read(0.0 if self._payloads.is_fetching else timeout_seconds)
        fetched = self._payloads.decided(0.0 if at_hand else timeout_seconds)
        return [*at_hand, *(self._take(*each) for each in fetched)]

    def _read(self, timeout_seconds: float) -> list[SampleHeader]:
        if not self._waiting and not self._payloads.is_full:
            records = self._consumer.poll(timeout_seconds)
            self._waiting = [(record, *read_sample(record, self._limits)) for record in records]
        arrived = self._waiting
        if not self._origins.can_place(((header, sample) for _, header, sample in arrived), timeout_seconds):
            return []
        self._waiting = []
        at_hand = []
        for record, read, sample in arrived:
            # A flood tells of a writer of another version. Samples that nobody ordered tell nothing of the run's own.
            if read.defect is not None:
                self._limit.dead(record, read.defect)
            header = self._origins.placed(read, sample)
            if sample is not None and _needs_object(header, sample):
                self._payloads.add(record, header, sample)
            else:
                at_hand.append(self._take(record, header, sample))
        return at_hand

    def _take(self, record: Record, header: SampleHeader, sample: Sample | None) -> SampleHeader:
        if header.defect is not None:
            self._dead_letters[header.place] = self._dead_letter(record, header, header.defect)
            return header
        self._limit.good(record.topic)
        if sample is not None and sample.status is Status.FINISHED:
            self._finished[header.place] = sample
        elif sample is not None and sample.status is Status.FAILED:
            self.newest_failure = f"{sample.error_class}: {sample.error_message}"
        return header

    def _dead_letter(self, record: Record, header: SampleHeader, defect: str) -> DeadLetter:
        error_class = "SchemaError" if header.status is None else "InvalidSample"
        return dead_letter(
            record,
            reason=defect,
            error_class=error_class,
            owner="trainer",
            most_bytes=self._most_record_bytes,
        )

    @property
    def num_unplaced(self) -> int:
        """Samples that were read and wait until it is known where they come from."""
        return len(self._waiting)

    @property
    def payloads(self) -> PayloadFetches:
        """What waits for objects of the store."""
        return self._payloads

    @property
    def positions(self) -> tuple[int, ...]:
        """Next offset per partition that `poll` has returned nothing of."""
        positions = [self._consumer.position(partition) for partition in self._partitions]
        for record, _, _ in self._waiting:
            positions[record.partition] = min(positions[record.partition], record.offset)
        for partition, offset in self._payloads.lowest_offsets().items():
            positions[partition] = min(positions[partition], offset)
        return tuple(positions)

    def end_offsets(self) -> tuple[int, ...]:
        """End of each partition, fetched now."""
        ends = self._consumer.end_offsets(self._partitions)
        return tuple(ends[partition] for partition in self._partitions)

    def samples(self, headers: Iterable[SampleHeader]) -> list[Sample]:
        """Finished samples with their rewards, in the given order. Raises KeyError for one that is not held."""
        return [
            sample if header.late_reward is None else rewarded(sample, header.late_reward.whole())
            for header in headers
            for sample in [self._finished[header.place]]
        ]

    def dead_letters(self, places: Iterable[Place]) -> list[DeadLetter]:
        """Dead letters among these places."""
        return [self._dead_letters[place] for place in places if place in self._dead_letters]

    def release(self, places: Iterable[Place]) -> None:
        """Forget what is held of samples whose verdict is committed."""
        for place in places:
            self._finished.pop(place, None)
            self._dead_letters.pop(place, None)


def _needs_object(header: SampleHeader, sample: Sample) -> bool:
    """What nobody ordered is dead by its record alone: nothing is fetched for it."""
    return header.defect is None and sample.status is Status.FINISHED and sample.payload is not None


def check_retained(broker: Broker, topic: str, low_water_marks: Sequence[int]) -> None:
    """Raise TopicMismatch, naming the gap, where samples that have no disposition are not in the topic any more."""
    partitions = [TopicPartition(topic, partition) for partition in range(len(low_water_marks))]
    with broker.consumer(client_id="trainer-samples") as consumer:
        beginnings = consumer.beginning_offsets(partitions)
    for partition, mark in zip(partitions, low_water_marks, strict=True):
        if beginnings[partition] > mark:
            raise TopicMismatch(
                f"{topic}, partition {partition.partition}: samples from offset {mark} to "
                f"{beginnings[partition] - 1} have no disposition and are no longer in the topic; raise its "
                "retention (retention.ms=-1) and restore them from a replica, or start a new run"
            )
