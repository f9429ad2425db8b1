"""Whether a snapshot was made from the log that is there: its ledger's last record stands where it stood.

A log may have been restored from an older copy, cut, or begun again under the same names. Then the whole log is read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rollog.kernel.broker.ports import TopicPartition
from rollog.kernel.broker.reading import read_until
from rollog.rules.ledger_state import record_hash

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from rollog.kernel.broker.ports import Consumer


def misfit(
    consumer: Consumer, steps_topic: str, head: bytes, positions: Mapping[TopicPartition, int]
) -> str | None:
    """Why what was folded up to `positions` is not a part of the log that is there; None where it is.

    `head` is the sha256 of the last ledger record that was folded; it stands right before the position in `steps`.
    `consumer` is assigned other partitions in this.
    """
    ends = consumer.end_offsets(positions)
    for place, position in positions.items():
        if not 0 <= position <= ends[place]:
            return (
                f"it is at offset {position} of {place.topic}[{place.partition}], which ends at {ends[place]}"
            )
    steps = TopicPartition(steps_topic, 0)
    position = positions.get(steps, 0)
    if position < 1 or consumer.beginning_offsets([steps])[steps] >= position:
        return f"the ledger record before offset {position} is not there"
    last = list(read_until(consumer, {steps: position - 1}, {steps: position}))
    if [record_hash(record.value or b"") for record in last] != [head]:
        return f"the ledger has another record before offset {position}"
    return None


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
