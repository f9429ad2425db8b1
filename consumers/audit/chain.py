"""The hash chain of `steps`: every link checked over the bytes as stored.

A broken link is named and the chain taken up again behind it, so that one alteration does not hide the next.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING

from consumers.audit.findings import Place
from schemas import LedgerKind, LedgerRecord
from schemas.codec import SchemaError, decode_as

if TYPE_CHECKING:
    from consumers.audit.findings import Check
    from rollog.kernel.broker.ports import Record

first_previous_hash = bytes(32)
_makes_version = frozenset({LedgerKind.GENESIS, LedgerKind.STEP, LedgerKind.REBASE})


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """A ledger record with its place and its hash; `follows` if no record is missing between it and the last one."""

    place: Place
    digest: bytes
    record: LedgerRecord
    follows: bool

    @property
    def name(self) -> str:
        """The record as people call it."""
        return f"record {self.record.sequence} ({self.record.kind})"


class Chain:
    """Takes in the records of `steps` in order of offset."""

    def __init__(self, check: Check, *, begins_with_genesis: bool = True) -> None:
        self._check = check
        self._begins_with_genesis = begins_with_genesis
        self._last: Link | None = None
        self._unreadable: list[bytes] = []
        self._is_closed = False
        self.digests: list[bytes] = []
        """The sha256 of every record so far."""

    @property
    def head(self) -> bytes | None:
        """The sha256 of the last record; None before the first."""
        return self.digests[-1] if self.digests else None

    def add(self, record: Record) -> Link | None:
        """Check one more record; returns None for one that cannot be read."""
        place = Place(record.topic, record.partition, record.offset)
        digest = sha256(record.value or b"").digest()
        self.digests.append(digest)
        self._check.num_checked += 1
        try:
            decoded = decode_as(LedgerRecord, record.value or b"")
        except SchemaError as error:
            self._check.find("not a ledger record", place=place, expected="LedgerRecord", found=error)
            self._unreadable.append(digest)
            return None
        follows = self._check_link(decoded, place)
        link = Link(place=place, digest=digest, record=decoded, follows=follows)
        self._check_form(link)
        self._last = link
        self._unreadable.clear()
        self._is_closed |= decoded.kind is LedgerKind.CLOSE
        return link

    def _check_link(self, record: LedgerRecord, place: Place) -> bool:
        """Whether sequence and predecessor's hash are those that must follow."""
        if self._last is None:
            return self._check_first(record, place)
        name = f"record {record.sequence} ({record.kind})"
        last = self._last
        if record.previous_hash in self._unreadable:
            return False  # what stands before it belongs to the chain, though it cannot be read
        expected = last.record.sequence + 1
        if record.sequence != expected:
            self._check.find(
                _gap(expected, record.sequence),
                place=place,
                record_id=name,
                expected=f"sequence {expected}",
                found=f"sequence {record.sequence}",
            )
            return False
        if record.previous_hash != last.digest:
            self._check.find(
                f"it was written after another record than {last.name} at offset {last.place.offset}: "
                "one of the two was rewritten",
                place=place,
                record_id=name,
                expected=f"previous hash {last.digest.hex()}",
                found=record.previous_hash.hex(),
            )
        return True

    def _check_first(self, record: LedgerRecord, place: Place) -> bool:
        if not self._begins_with_genesis:
            return False
        is_first = record.kind is LedgerKind.GENESIS and record.sequence == 0
        if not is_first or record.previous_hash != first_previous_hash:
            self._check.find(
                "a ledger begins with its genesis record: what stood before is missing, or was altered",
                place=place,
                record_id=f"record {record.sequence} ({record.kind})",
                expected="record 0 (genesis) after no other",
                found=f"record {record.sequence} ({record.kind}) after {record.previous_hash.hex()}",
            )
        return is_first

    def _check_form(self, link: Link) -> None:
        record, last = link.record, self._last
        if self._is_closed:
            self._find(link, "it comes after the close record", "nothing", record.kind)
        if record.kind is LedgerKind.GENESIS and last is not None:
            self._find(link, "a second genesis record", "one genesis record, the first", record.kind)
        self._check_parts(link)
        if last is not None and link.follows:
            made = record.kind in _makes_version and record.part == 0
            version = last.record.version + made
            if record.version != version:
                self._find(link, "versions are contiguous", f"version {version}", f"version {record.version}")

    def _check_parts(self, link: Link) -> None:
        """Parts of a split record stand one behind the other."""
        last = self._last
        if last is None or not link.follows:
            return
        expected = last.record.part + 1 if last.record.part + 1 < last.record.num_parts else 0
        whole = (last.record.kind, last.record.num_parts) if expected else None
        found = (link.record.kind, link.record.num_parts) if expected else None
        if link.record.part != expected or whole != found:
            self._find(
                link,
                "parts of a split record are missing or mixed up",
                f"part {expected} of {last.record.num_parts if expected else link.record.num_parts}",
                f"part {link.record.part} of {link.record.num_parts} ({link.record.kind})",
            )

    def _find(self, link: Link, message: str, expected: object, found: object) -> None:
        self._check.find(message, place=link.place, record_id=link.name, expected=expected, found=found)


def _gap(expected: int, found: int) -> str:
    if found > expected:
        missing = (
            f"record {expected} is" if found == expected + 1 else f"records {expected} to {found - 1} are"
        )
        return f"{missing} missing before it, or stand elsewhere"
    return "it was moved here, or stands in the topic twice"
