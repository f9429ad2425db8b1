"""Which record of a mirrored partition is which record of the original.

A mirror has the records of a partition in their order, and numbers them anew: markers of transactions, aborted records
and what retention has deleted take no offsets there. The two are laid side by side by the digests of their records.

    original    0:a   1:b  (2: marker)  3:c   4:d  (5: marker)
    mirror      0:a   1:b               2:c   3:c   4:x
    found       0=0   1=1               3=2         4=4 altered; 3 of the mirror is doubled

Pure: no broker, no file.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from enum import StrEnum
from hashlib import sha256
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rollog.kernel.broker.ports import Record

num_digest_bytes = 16
"""As those of verdicts."""


class FaultKind(StrEnum):
    """In what a mirror is not its original."""

    LOST = "lost"
    DOUBLED = "doubled"
    ALTERED = "altered"
    ADDED = "added"
    NOT_YET = "not mirrored yet"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One record that is not as it was; `original` and `mirrored` are its offsets, as far as it has them."""

    kind: FaultKind
    original: int | None = None
    mirrored: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Originals:
    """What is known of one original partition: offsets and digests of its records, in order.

    `end` is the offset behind everything, markers included; None where that is not known. `is_complete` False says that
    there were other records, whose offsets lie between those that are known. `digest` says of what the digests are.
    """

    offsets: Sequence[int]
    digests: Sequence[bytes]
    digest: Callable[[Record], bytes]
    begin: int = 0
    end: int | None = None
    is_complete: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Alignment:
    """Offsets of the same records, ascending, and what is off. `end` and `mirrored_end` are behind everything."""

    originals: Sequence[int]
    mirrored: Sequence[int]
    begin: int
    end: int
    mirrored_end: int
    faults: Sequence[Fault] = ()

    def to_mirrored(self, offset: int) -> int:
        """Where a reader has to begin for everything from an original offset on."""
        index = bisect_left(self.originals, offset)
        if index < len(self.originals):
            return self.mirrored[index]
        return self.mirrored_end + max(0, offset - self.end)

    def to_original(self, offset: int) -> int:
        """The original offset of the next record at or behind a mirrored one; behind the last, the end."""
        index = bisect_left(self.mirrored, offset)
        if index < len(self.mirrored):
            return self.originals[index]
        return self.end + max(0, offset - self.mirrored_end)

    def original_of(self, offset: int) -> int | None:
        """The original offset of the record at a mirrored one; None of one that the original has not."""
        if offset >= self.mirrored_end:
            return self.end + offset - self.mirrored_end
        index = bisect_left(self.mirrored, offset)
        if index < len(self.mirrored) and self.mirrored[index] == offset:
            return self.originals[index]
        return None


def whole_digest(record: Record) -> bytes:
    """16 bytes of a sha256 over key, headers and value, each with its length in front."""
    digest = sha256()
    for part in (record.key, record.value, *(each for header in record.headers for each in header)):
        data = part.encode() if isinstance(part, str) else part
        digest.update(b"-" if data is None else b"%d:" % len(data))
        digest.update(data or b"")
    return digest.digest()[:num_digest_bytes]


def align(
    known: Originals,
    mirrored: Sequence[tuple[int, bytes]],
    *,
    mirrored_end: int,
    is_cut: bool = False,
) -> Alignment:
    """Lay a mirrored partition, given as offsets and digests, beside its original.

    With `is_cut` retention has deleted the beginning of the mirror: what stood there is not called lost.
    """
    found = _Side(known, mirrored)
    # Without autojunk a record that is there often, such as an empty one, counts like any other.
    matcher = SequenceMatcher(None, known.digests, [digest for _, digest in mirrored], autojunk=False)
    opcodes = matcher.get_opcodes()
    for tag, i, j, k, m in opcodes:
        if tag == "equal":
            found.same(i, j, k)
        else:
            found.differ(i, j, k, m, is_cut=is_cut and i == 0 and not found.pairs)
    return found.alignment(mirrored_end)


@dataclass(slots=True)
class _Side:
    """Takes in what is equal and what differs, in order."""

    known: Originals
    mirror: Sequence[tuple[int, bytes]]
    pairs: list[tuple[int, int]] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    begin: int | None = None
    _digests: set[bytes] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._digests = set(self.known.digests)

    def same(self, i: int, j: int, k: int) -> None:
        """Originals i to j are mirrored from k on."""
        offsets = (offset for offset, _ in self.mirror[k : k + j - i])
        self.pairs += zip(self.known.offsets[i:j], offsets, strict=True)

    def differ(self, i: int, j: int, k: int, m: int, *, is_cut: bool) -> None:
        """Originals i to j are not there; k to m of the mirror stand in their place."""
        unknown = []
        for offset, digest in self.mirror[k:m]:
            if digest in self._digests:
                self.faults.append(Fault(kind=FaultKind.DOUBLED, mirrored=offset))
            else:
                unknown.append(offset)
        missing = list(self.known.offsets[i:j])
        num_altered = min(len(missing), len(unknown))
        for original, offset in zip(missing[:num_altered], unknown[:num_altered], strict=True):
            self.pairs.append((original, offset))
            self.faults.append(Fault(kind=FaultKind.ALTERED, original=original, mirrored=offset))
        if is_cut and not num_altered:
            self.begin = missing[-1] + 1 if missing else None
        else:
            self._miss(missing[num_altered:], is_last=j == len(self.known.offsets))
        self._place(unknown[num_altered:], self.known.offsets[j] if j < len(self.known.offsets) else None)

    def _miss(self, missing: Sequence[int], *, is_last: bool) -> None:
        kind = FaultKind.NOT_YET if is_last else FaultKind.LOST
        self.faults += [Fault(kind=kind, original=offset) for offset in missing]

    def _place(self, unknown: Sequence[int], following: int | None) -> None:
        """Records of which the digest is not known: into the gap that is there, or added by somebody."""
        free = self.pairs[-1][0] + 1 if self.pairs else self.known.begin
        for offset in unknown:
            has_room = following is None or free < following
            if self.known.is_complete or not has_room:
                self.faults.append(Fault(kind=FaultKind.ADDED, mirrored=offset))
            else:
                self.pairs.append((free, offset))
                free += 1

    def alignment(self, mirrored_end: int) -> Alignment:
        behind_last = self.pairs[-1][0] + 1 if self.pairs else self.known.begin
        is_behind = any(fault.kind is FaultKind.NOT_YET for fault in self.faults)
        end = behind_last if self.known.end is None or is_behind else max(self.known.end, behind_last)
        return Alignment(
            originals=[original for original, _ in self.pairs],
            mirrored=[offset for _, offset in self.pairs],
            begin=self.known.begin if self.begin is None else self.begin,
            end=end,
            mirrored_end=mirrored_end,
            faults=self.faults,
        )
