"""Samples read again by the references that the ledger holds: the very records that were trained, or an error.

Consumes `samples`, for samples that got their reward late `rewards`, by place, and the objects that large samples name.
Raises LedgerError for a record that is gone or is not the one referenced, and where its object is gone or altered.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rollog.kernel.broker.ports import TopicPartition
from rollog.kernel.broker.reading import read_until
from rollog.kernel.errors import LedgerError, PayloadAltered, PayloadMissing
from rollog.rules.headers import record_digest
from rollog.rules.late_rewards import rewarded
from schemas import Reward, Sample
from schemas.claim_check import joined
from schemas.codec import SchemaError, decode_as

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from rollog.kernel.broker.ports import Consumer
    from rollog.kernel.broker.topics import RunTopics
    from rollog.kernel.payloads import PayloadStore
    from schemas import RewardReference, Verdict


def read_referenced(
    consumer: Consumer, topics: RunTopics, references: Sequence[Verdict], payloads: PayloadStore
) -> dict[tuple[int, int], Sample]:
    """The referenced samples by place, whole, with the rewards that the ledger names.

    Raises LedgerError when one, or its object, is gone or is not the one that was trained; PayloadStoreSilent.
    """
    found = _read_samples(consumer, topics.samples, references, payloads)
    late = {(each.partition, each.offset): each.late_reward for each in references if each.late_reward}
    rewards = read_rewards(consumer, topics.rewards, tuple(late.values()))
    return found | {
        place: rewarded(found[place], rewards[reference.offset]) for place, reference in late.items()
    }


def read_rewards(consumer: Consumer, topic: str, references: Sequence[RewardReference]) -> dict[int, Reward]:
    """The referenced rewards by offset. Raises LedgerError when one is gone or is not the one that is named."""
    if not references:
        return {}
    wanted = {reference.offset: reference for reference in references}
    place = TopicPartition(topic, 0)
    beginning = consumer.beginning_offsets([place])[place]
    _require_all(place, [offset for offset in wanted if offset < beginning], "rewards of trained samples")
    records = read_until(consumer, {place: min(wanted)}, {place: max(wanted) + 1})
    found = {
        record.offset: _verified_reward(record.value, wanted[record.offset])
        for record in records
        if record.offset in wanted
    }
    _require_all(place, wanted.keys() - found.keys(), "rewards of trained samples")
    return found


def _verified_reward(value: bytes | None, reference: RewardReference) -> Reward:
    place = f"the reward at offset {reference.offset}"
    if record_digest(value) != reference.digest:
        raise LedgerError(f"{place} is not the record that the ledger names; restore the topic")
    try:
        return decode_as(Reward, value or b"")
    except SchemaError as error:
        raise LedgerError(f"{place} was used but cannot be decoded now: {error}") from error


def _read_samples(
    consumer: Consumer, topic: str, references: Sequence[Verdict], payloads: PayloadStore
) -> dict[tuple[int, int], Sample]:
    wanted = {(reference.partition, reference.offset): reference for reference in references}
    starts, ends = spans(topic, wanted)
    beginnings = consumer.beginning_offsets(starts)
    for place, beginning in beginnings.items():
        _require_all(
            place, [at for partition, at in wanted if partition == place.partition and at < beginning]
        )
    # All partitions at once: each assignment waits for the fetch under way, up to a tenth of a second.
    found = {
        (record.partition, record.offset): _verified(record.value, reference, payloads)
        for record in read_until(consumer, starts, ends)
        if (reference := wanted.get((record.partition, record.offset))) is not None
    }
    for place in starts:
        missing = [at for partition, at in wanted.keys() - found.keys() if partition == place.partition]
        _require_all(place, missing)
    return found


def spans(
    topic: str, wanted: Iterable[tuple[int, int]]
) -> tuple[dict[TopicPartition, int], dict[TopicPartition, int]]:
    """From the first to behind the last wanted (partition, offset), for each partition of a topic."""
    starts: dict[TopicPartition, int] = {}
    ends: dict[TopicPartition, int] = {}
    for partition, offset in wanted:
        place = TopicPartition(topic, partition)
        starts[place] = min(offset, starts.get(place, offset))
        ends[place] = max(offset + 1, ends.get(place, 0))
    return starts, ends


def _require_all(partition: TopicPartition, missing: Collection[int], what: str = "trained samples") -> None:
    if missing:
        raise LedgerError(
            f"{partition.topic}, partition {partition.partition}: {what} at offsets {sorted(missing)[:5]} are "
            "no longer in the topic, so their step cannot be redone; restore the topic or a later checkpoint"
        )


def _verified(value: bytes | None, reference: Verdict, payloads: PayloadStore) -> Sample:
    place = f"sample {reference.sample_id} (partition {reference.partition}, offset {reference.offset})"
    if record_digest(value) != reference.digest:
        raise LedgerError(f"{place} is not the record that the ledger says was trained; restore the topic")
    try:
        return whole_sample(decode_as(Sample, value or b""), payloads)
    except SchemaError as error:
        raise LedgerError(f"{place} was trained but cannot be decoded now: {error}") from error
    except (PayloadMissing, PayloadAltered) as error:
        raise LedgerError(f"{place} was trained, and its arrays cannot be read now: {error}") from error


def whole_sample(sample: Sample, payloads: PayloadStore) -> Sample:
    """A sample with its arrays, wherever they stand. Raises PayloadError, SchemaError."""
    return sample if sample.payload is None else joined(sample, payloads.fetch(sample.payload))
