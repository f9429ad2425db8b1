"""Whether a snapshot was made from the log that is there: its ledger's last record stands where it stood.

A log may have been restored from an older copy, cut, or begun again under the same names. Then the whole log is read.
Besides, what the snapshots of all roles hold, as plain data: positions, records, and by which settings they were made.
"""

from __future__ import annotations

import base64
import hashlib
import json
from typing import TYPE_CHECKING, TypeVar

from rollog.kernel.broker.ports import TopicPartition
from rollog.kernel.broker.reading import read_until
from rollog.rules.ledger_state import record_hash
from schemas import Record
from schemas.codec import decode_as, encode

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from rollog.kernel.broker.ports import Consumer

Kind = TypeVar("Kind", bound=Record)


def require_fit(
    consumer: Consumer, steps_topic: str, head: bytes, positions: Mapping[TopicPartition, int]
) -> None:
    """Raise ValueError where what was folded up to `positions` is not a part of the log that is there.

    `head` is the sha256 of the last ledger record that was folded; it stands right before the position in `steps`.
    `consumer` is assigned other partitions in this. Raises as a consumer does.
    """
    ends = consumer.end_offsets(positions)
    for place, position in positions.items():
        if not 0 <= position <= ends[place]:
            raise ValueError(
                f"it is at offset {position} of {place.topic}[{place.partition}], which ends at {ends[place]}"
            )
    steps = TopicPartition(steps_topic, 0)
    position = positions.get(steps, 0)
    if position < 1 or consumer.beginning_offsets([steps])[steps] >= position:
        raise ValueError(f"the ledger record before offset {position} is not there")
    last = list(read_until(consumer, {steps: position - 1}, {steps: position}))
    if [record_hash(record.value or b"") for record in last] != [head]:
        raise ValueError(f"the ledger has another record before offset {position}")


def require_settings(plain: Mapping[str, object], facts: Sequence[object]) -> None:
    """Raise ValueError where a snapshot was made under other settings than `facts`. Raises KeyError without any."""
    if plain["settings"] != digest_of_settings(facts):
        raise ValueError("it was made under other settings")


def digest_of_settings(facts: Sequence[object]) -> str:
    """Of all that decides what is made of the same log, as JSON has it."""
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def record_to_plain(record: Record) -> str:
    """A record as JSON has it."""
    return base64.b64encode(encode(record)).decode("ascii")


def record_from_plain(kind: type[Kind], plain: str) -> Kind:
    """What `record_to_plain` gave. Raises ValueError, TypeError or SchemaError for anything else."""
    return decode_as(kind, base64.b64decode(plain, validate=True))


def positions_to_plain(positions: Mapping[TopicPartition, int]) -> list[list[object]]:
    """Positions as JSON has them."""
    return [[place.topic, place.partition, position] for place, position in positions.items()]


def positions_from_plain(plain: Iterable[Iterable[object]]) -> dict[TopicPartition, int]:
    """What `positions_to_plain` gave. Raises ValueError or TypeError for anything else."""
    read: dict[TopicPartition, int] = {}
    for topic, partition, position in plain:
        if not (isinstance(topic, str) and isinstance(partition, int) and isinstance(position, int)):
            raise TypeError(f"no position: {topic!r}, {partition!r}, {position!r}")
        read[TopicPartition(topic, partition)] = position
    return read
