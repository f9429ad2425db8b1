"""The records of a topic that are of one type. What cannot be read its first reader has set aside, as a dead letter."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from rollog.kernel.broker.reading import read_topic
from schemas import tasks_in
from schemas.codec import SchemaError, decode

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rollog.kernel.broker.ports import Broker, Record
    from schemas import RolloutTask

_T = TypeVar("_T")


def read_readable(
    broker: Broker, topic: str, wanted: type[_T], *, client_id: str
) -> Iterator[tuple[Record, _T]]:
    """Each committed record that decodes as `wanted`, with what it says; others are passed over.

    Raises as `read_topic` does.
    """
    for record in read_topic(broker, topic, client_id=client_id):
        try:
            decoded = decode(record.value or b"")
        except SchemaError:
            continue
        if isinstance(decoded, wanted):
            yield record, decoded


def read_tasks(broker: Broker, topic: str, *, client_id: str) -> Iterator[tuple[Record, RolloutTask]]:
    """Each task of a topic of tasks, with the record that orders it, by itself or among others.

    Raises as `read_topic` does.
    """
    for record in read_topic(broker, topic, client_id=client_id):
        try:
            decoded = decode(record.value or b"")
        except SchemaError:
            continue
        for task in tasks_in(decoded):
            yield record, task
