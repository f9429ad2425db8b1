"""Which records of `steps` are the run's own: those that follow one another from genesis on.

Anybody may be able to write there, and what is written cannot be taken back. A record that cannot follow is named and
left out, so that it ends no run; where the run's own records are missing or altered, nobody goes on.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rollog.kernel.errors import LedgerError
from rollog.kernel.logs import get_logger
from rollog.kernel.printable import printable
from rollog.rules.ledger_state import no_hash
from rollog.rules.reading import decoded_ledger_record
from schemas.codec import SchemaError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rollog.kernel.broker.ports import Record
    from schemas import LedgerRecord

log = get_logger("ledger")

num_remembered = 1000
"""Strangers whose successor would show that the run's own records are missing."""


@dataclass(slots=True)
class LedgerChain:
    """Takes the records of `steps` in order of offset, from the first one or from behind a known one.

    | a record | is |
    | --- | --- |
    | names the newest record's hash, and the next sequence | the run's |
    | is no ledger record, or has a sequence that was before | a stranger, left out |
    | any other | a stranger, left out; if a later one follows it, the run's own records are missing: LedgerError |

    Example: records 0 to 4 follow each other. A copy of 2 is a stranger, and so is one that says 9. Had 5 been lost,
    6 would be a stranger too, and 7, which names the hash of 6, ends the reading.
    """

    next_sequence: int = 0
    head: bytes = no_hash
    num_strangers: int = 0
    _beyond: dict[bytes, int] = field(default_factory=dict)

    def take(self, record: Record) -> tuple[LedgerRecord, bytes] | None:
        """The ledger record with the sha256 of its value; None for a stranger. Raises LedgerError as above."""
        try:
            decoded, digest = decoded_ledger_record(record)
        except SchemaError as error:
            self._leave_out(record, f"not a ledger record: {error}")
            return None
        if decoded.sequence == self.next_sequence and decoded.previous_hash == self.head:
            self.next_sequence, self.head = decoded.sequence + 1, digest
            return decoded, digest
        if decoded.sequence < self.next_sequence:
            self._leave_out(record, f"record {decoded.sequence} was before")
            return None
        if self._beyond.get(decoded.previous_hash) == decoded.sequence - 1:
            raise LedgerError(
                f"{record.topic}, offset {record.offset}: record {decoded.sequence} follows one that does not follow "
                f"record {self.next_sequence - 1}: a record is missing or was altered; restore the topic"
            )
        if len(self._beyond) < num_remembered:
            self._beyond[digest] = decoded.sequence
        self._leave_out(record, f"record {decoded.sequence} does not follow record {self.next_sequence - 1}")
        return None

    def _leave_out(self, record: Record, reason: str) -> None:
        self.num_strangers += 1
        log.warning("not a record of this ledger, left out", offset=record.offset, reason=printable(reason))


def chain_within(records: Sequence[Record]) -> LedgerChain | None:
    """The chain of a ledger of which only these records, the last ones, are known: the longest that they hold.

    A stranger follows no record, or one that another follows as well. None where most of them are strangers: then it
    cannot be told here.
    """
    lengths: dict[bytes, tuple[int, LedgerChain]] = {}
    longest = (0, LedgerChain())
    for record in records:
        try:
            decoded, digest = decoded_ledger_record(record)
        except SchemaError:
            continue
        before, chain = lengths.get(
            decoded.previous_hash, (0, LedgerChain(decoded.sequence, decoded.previous_hash))
        )
        lengths[digest] = (before + 1, chain)
        longest = max(longest, lengths[digest], key=lambda found: found[0])
    return longest[1] if 2 * longest[0] > len(records) else None
