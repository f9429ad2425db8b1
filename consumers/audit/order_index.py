"""The orders of a run by task, in few bytes, because an audit holds all of them until it has read all samples.

An order of the usual form takes about 170 bytes, its task's name included. What has another form, or stands beside a
second record of its task that differs, is kept as it is.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from consumers.audit.findings import Place
from consumers.audit.numbered_texts import NumberedTexts

if TYPE_CHECKING:
    from collections.abc import Iterator

Key = int | str

_packed = struct.Struct("<IIqqiiiqqiB")
_sequence_bits = 40
_is_ours, _is_void, _has_ended = 1, 2, 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """A task of training, as far as its samples must repeat it; `is_ours` if a dispatcher of the run can have given it.

    `is_void` says that a fence of a later dispatcher stands before it: no worker begins it.
    """

    place: Place
    grant_id: str
    group_id: int
    replica: int
    num_replicas: int
    attempt: int
    seed: int
    ledger_position: int
    sample_partition: int
    is_ours: bool
    is_void: bool


@dataclass(slots=True)
class _Several:
    """Orders of one task that differ, or one of another form than usual."""

    orders: list[Order]
    has_ended: bool = False


@dataclass(slots=True)
class OrderIndex:
    """Orders by task, in the order in which the tasks were met first; all stand on one topic."""

    _by_task: dict[Key, bytes | _Several] = field(default_factory=dict)
    _grant_ids: NumberedTexts = field(default_factory=NumberedTexts)
    _topic: str = ""

    def add(self, task_id: str, order: Order) -> None:
        """One more order of a task; one that is known already adds nothing."""
        self._topic = order.place.topic
        key = _key(task_id)
        known = self._by_task.get(key)
        if known is None:
            self._by_task[key] = self._pack(order) or _Several([order])
            return
        several = known if isinstance(known, _Several) else _Several([self._unpacked(known)])
        if order not in several.orders:
            several.orders.append(order)
        self._by_task[key] = several

    def of(self, task_id: str) -> list[Order]:
        """The orders of a task."""
        found = self._by_task.get(_key(task_id))
        return [] if found is None else self._orders(found)

    def items(self) -> Iterator[tuple[str, list[Order], bool]]:
        """Every task with its orders, and whether it has ended."""
        for key, found in self._by_task.items():
            has_ended = found.has_ended if isinstance(found, _Several) else bool(found[-1] & _has_ended)
            yield _task_id(key), self._orders(found), has_ended

    def end(self, task_id: str) -> bool:
        """A task has ended; whether the name is that of one, and of nothing else."""
        key = _key(task_id)
        found = self._by_task.get(key)
        if isinstance(found, _Several):
            found.has_ended = True
        elif found is not None:
            self._by_task[key] = found[:-1] + bytes([found[-1] | _has_ended])
        return found is not None and isinstance(key, int)

    def _orders(self, found: bytes | _Several) -> list[Order]:
        return found.orders if isinstance(found, _Several) else [self._unpacked(found)]

    def _pack(self, order: Order) -> bytes | None:
        """None for numbers that nobody of the run gives."""
        try:
            return _packed.pack(
                self._grant_ids.number(order.grant_id),
                order.place.partition,
                order.place.offset,
                order.group_id,
                order.replica,
                order.num_replicas,
                order.attempt,
                order.seed,
                order.ledger_position,
                order.sample_partition,
                _is_ours * order.is_ours | _is_void * order.is_void,
            )
        except struct.error:
            return None

    def _unpacked(self, found: bytes) -> Order:
        (
            grant,
            partition,
            offset,
            group_id,
            replica,
            num_replicas,
            attempt,
            seed,
            position,
            sample_partition,
            flags,
        ) = _packed.unpack(found)
        return Order(
            place=Place(self._topic, partition, offset),
            grant_id=self._grant_ids[grant],
            group_id=group_id,
            replica=replica,
            num_replicas=num_replicas,
            attempt=attempt,
            seed=seed,
            ledger_position=position,
            sample_partition=sample_partition,
            is_ours=bool(flags & _is_ours),
            is_void=bool(flags & _is_void),
        )


def _key(task_id: str) -> Key:
    """A number for `epoch.sequence` as dispatchers write it, else the name itself."""
    epoch, _, sequence = task_id.partition(".")
    if not (epoch.isascii() and epoch.isdecimal() and sequence.isascii() and sequence.isdecimal()):
        return task_id
    if len(epoch) > 6 or len(sequence) > 11:  # noqa: PLR2004 - it is to fit in 60 bits
        return task_id
    key = int(epoch) << _sequence_bits | int(sequence)
    return key if _task_id(key) == task_id else task_id


def _task_id(key: Key) -> str:
    if isinstance(key, str):
        return key
    return f"{key >> _sequence_bits}.{key & (1 << _sequence_bits) - 1}"
