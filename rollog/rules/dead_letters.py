"""Records that cannot be used: what becomes of one, and when they are too many."""

from __future__ import annotations

from collections import Counter
from hashlib import sha256
from typing import TYPE_CHECKING

from rollog.kernel.broker.limits import record_bytes
from rollog.kernel.errors import DecodeError
from schemas import DeadLetter

if TYPE_CHECKING:
    from rollog.kernel.broker.ports import Record

most_reason_characters = 2000


def dead_letter(record: Record, *, reason: str, error_class: str, owner: str, most_bytes: int) -> DeadLetter:
    """The letter of a refused record: its bytes, its place, why, and who refused it.

    Of a record over `most_bytes`, which no dead letter could hold, only size and digest.
    """
    num_bytes = record_bytes(record.value, record.key, record.headers)
    if num_bytes > most_bytes:
        digest = sha256(record.value or b"").digest()
        return DeadLetter(
            topic=record.topic,
            partition=record.partition,
            offset=record.offset,
            reason=f"{reason[:most_reason_characters]} (its {num_bytes} bytes are not copied: sha256 {digest.hex()})",
            error_class=error_class,
            owner=owner,
            value_sha256=digest,
        )
    return DeadLetter(
        topic=record.topic,
        partition=record.partition,
        offset=record.offset,
        reason=reason[:most_reason_characters],
        error_class=error_class,
        owner=owner,
        key=record.key,
        value=record.value,
        headers=dict(record.headers),
    )


class DeadLetterLimit:
    """Ends a stage that meets nothing but dead letters on a topic: then the writer is at fault, not a record.

    `most` dead letters in a row are taken, one more is a flood; a good record of that topic starts the count again.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._in_a_row: Counter[str] = Counter()

    def good(self, topic: str) -> None:
        """A record of the topic was used."""
        self._in_a_row[topic] = 0

    def dead(self, record: Record, reason: str) -> None:
        """A record becomes a dead letter. Raises DecodeError when it is one too many."""
        self._in_a_row[record.topic] += 1
        if self._in_a_row[record.topic] > self._most:
            raise DecodeError(
                f"{self._in_a_row[record.topic]} records in a row on {record.topic} could not be used, the last at "
                f"partition {record.partition}, offset {record.offset}: {reason}; end or update what writes there, "
                "then start this role again, to pass over them with --set broker.max_dead_letters_in_a_row=N"
            )
