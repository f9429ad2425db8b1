"""One partition in memory: records, transaction markers, and how far committed readers may see."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rollog.kernel.broker.ports import Record

if TYPE_CHECKING:
    from rollog.kernel.broker.ports import Headers, TopicPartition


@dataclass(slots=True, eq=False)
class Transaction:
    """Records and consumer positions that become visible together, or never."""

    is_open: bool = True
    is_committed: bool = False
    first_offsets: dict[Log, int] = field(default_factory=dict)
    """Where it began in each partition it wrote to."""
    offsets: dict[str, dict[TopicPartition, int]] = field(default_factory=dict)
    """Consumer positions per group."""

    def settle(self, *, is_committed: bool) -> None:
        """Write the markers: from now on its records are visible, or skipped."""
        self.is_open = False
        self.is_committed = is_committed
        for log in self.first_offsets:
            log.append_marker(self)


@dataclass(slots=True, frozen=True)
class _Entry:
    record: Record | None
    transaction: Transaction | None

    @property
    def is_visible(self) -> bool:
        if self.record is None:
            return False
        return self.transaction is None or self.transaction.is_committed


class Log:
    """Entries by offset."""

    def __init__(self, topic: str, partition: int) -> None:
        self._topic = topic
        self._partition = partition
        self._entries: list[_Entry] = []
        self._open: dict[Transaction, int] = {}
        self._last_timestamp_ms = 0
        self.beginning_offset = 0

    @property
    def next_offset(self) -> int:
        """Offset that the next record or marker gets."""
        return len(self._entries)

    @property
    def end_offset(self) -> int:
        """Last stable offset: everything before it is committed or aborted."""
        return min(self._open.values(), default=len(self._entries))

    def append(
        self, value: bytes | None, key: bytes | None, headers: Headers, transaction: Transaction | None
    ) -> int:
        """Returns the offset."""
        offset = len(self._entries)
        if transaction is not None:
            self._open.setdefault(transaction, offset)
            transaction.first_offsets.setdefault(self, offset)
        self._last_timestamp_ms = max(self._last_timestamp_ms, int(time.time() * 1000))
        record = Record(
            topic=self._topic,
            partition=self._partition,
            offset=offset,
            value=value,
            key=key,
            headers=list(headers),
            timestamp_ms=self._last_timestamp_ms,
        )
        self._entries.append(_Entry(record, transaction))
        return offset

    def append_marker(self, transaction: Transaction) -> None:
        """End a transaction in this partition; the marker takes an offset."""
        self._open.pop(transaction, None)
        self._entries.append(_Entry(None, transaction))

    def read(self, position: int, max_records: int) -> tuple[list[Record], int]:
        """Committed records from `position` on, and the position after them and after any markers that follow."""
        found: list[Record] = []
        end = self.end_offset
        while position < end and len(found) < max_records:
            entry = self._entries[position]
            position += 1
            if entry.record is not None and entry.is_visible:
                found.append(entry.record)
        while position < end and not self._entries[position].is_visible:
            position += 1
        return found, position

    def holds(self, position: int) -> bool:
        """Whether a reader may stand there."""
        return self.beginning_offset <= position <= len(self._entries)

    def delete_below(self, offset: int) -> None:
        """Forget what is stored below an offset."""
        for deleted in range(self.beginning_offset, offset):
            self._entries[deleted] = _Entry(None, None)
        self.beginning_offset = max(self.beginning_offset, offset)
