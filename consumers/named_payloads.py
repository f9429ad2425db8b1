"""Which objects of the store the records of a run name.

Consumes `samples` and `evaluations`, each record once; holds one name per large sample.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rollog.kernel.broker.reading import read_until
from schemas import Sample, SchemaError
from schemas.codec import decode_as

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rollog.kernel.broker.ports import Consumer, TopicPartition
    from schemas import Payload


def named_payload(value: bytes | None) -> Payload | None:
    """The object that a record names, if it is a sample and names one."""
    try:
        return decode_as(Sample, value or b"").payload
    except SchemaError:
        return None


def named_payloads(consumer: Consumer, starts: Mapping[TopicPartition, int]) -> set[str]:
    """Names in all records from these offsets on, up to the ends fetched now."""
    ends = consumer.end_offsets(list(starts))
    records = read_until(consumer, dict(starts), ends)
    named = (named_payload(record.value) for record in records)
    return {payload.sha256 for payload in named if payload is not None}
