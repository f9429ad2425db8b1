"""Dead letters of `samples`, against the records judged dead; those of other topics are counted."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from hashlib import sha256
from typing import TYPE_CHECKING

from consumers.audit.findings import Place
from consumers.audit.samples import num_digest_bytes
from schemas import DeadLetter, Disposition
from schemas.codec import SchemaError, decode_as

if TYPE_CHECKING:
    from consumers.audit.judged import Judged
    from consumers.audit.ledger_end import LedgerEnd
    from consumers.audit.ledger_index import LedgerIndex
    from rollog.kernel.broker.ports import Record


@dataclass(slots=True)
class DeadLetterChecks:
    """Takes in the records of `dead-letters`, then every place of `samples` with what was decided about it.

    Of the newest entry of a live run the dead_letters may not be visible yet: a transaction shows up topic by topic.
    """

    ledger: LedgerIndex
    end: LedgerEnd
    is_live: bool
    is_cut: bool
    num_unreadable: int = 0
    num_by_topic: Counter[str] = field(default_factory=Counter)
    _dead_letters: dict[tuple[int, int], tuple[Place, bytes]] = field(default_factory=dict)

    def add(self, record: Record) -> None:
        """One dead letter."""
        try:
            letter = decode_as(DeadLetter, record.value or b"")
        except SchemaError:
            self.num_unreadable += 1
            return
        self.num_by_topic[letter.topic] += 1
        if letter.topic != self.ledger.samples_topic:
            return
        place = Place(record.topic, record.partition, record.offset)
        digest = (letter.value_sha256 or sha256(letter.value or b"").digest())[:num_digest_bytes]
        first, _ = self._dead_letters.setdefault((letter.partition, letter.offset), (place, digest))
        if first != place:
            self.ledger.checks.dead_letters.find(
                f"a second dead letter of {Place(letter.topic, letter.partition, letter.offset)}",
                place=place,
                expected=f"one, at {first}",
                found=letter.owner,
            )

    def meets(self, place: Place, judged: Judged) -> None:
        """What was decided about one record: dead ones have a letter with their bytes, others none."""
        check = self.ledger.checks.dead_letters
        letter = self._dead_letters.pop((place.partition, place.offset), None)
        is_dead = judged.disposition is Disposition.DEAD
        if letter is None:
            if is_dead and (self.is_cut or (self.is_live and judged.entry == len(self.ledger.entries) - 1)):
                check.num_unchecked += 1
            elif is_dead:
                check.find(
                    "judged dead, but there is no dead letter", place=place, record_id=judged.sample_id
                )
            return
        check.num_checked += 1
        where, digest = letter
        if not is_dead:
            check.find(
                f"a dead letter of {place}",
                place=where,
                expected="disposition dead",
                found=judged.disposition,
            )
        elif digest != judged.digest:
            check.find(
                f"it does not hold the bytes of {place}",
                place=where,
                record_id=judged.sample_id,
                expected=judged.digest.hex(),
                found=digest.hex(),
            )

    def conclude(self) -> None:
        """Dead letters without a verdict are about records that the ledger does not know, or did not at first."""
        check = self.ledger.checks.dead_letters
        for (partition, offset), (where, _) in self._dead_letters.items():
            if self.is_live or not self.ledger.is_complete:
                check.num_unchecked += 1
                if self.ledger.is_complete:
                    self.end.letter_without_verdict(partition, offset, where)
                continue
            named = Place(self.ledger.samples_topic, partition, offset)
            check.find(f"a dead letter of {named}", place=where, expected="disposition dead", found="none")
