"""Dispositions and trained replicas in few bytes, because an audit holds those of all samples at once.

What has the usual form is packed, about 150 bytes for a disposition and 20 for a trained sample in groups of four.
What somebody wrote in another form is kept as it is.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

from consumers.audit.numbered_texts import NumberedTexts
from schemas import Disposition, sample_id

if TYPE_CHECKING:
    from collections.abc import Iterator

_packed = struct.Struct("<16sIqiiBqI")
_num_digest_bytes = 16
_no_lag = -(1 << 62)
_dispositions = tuple(Disposition)
_numbers = {disposition: number for number, disposition in enumerate(_dispositions)}


@dataclass(frozen=True, slots=True)
class Judged:
    """The disposition of one record of `samples`, and the index of the entry that made it final."""

    entry: int
    sample_id: str
    digest: bytes
    group_id: int
    replica: int
    disposition: Disposition
    lag: int | None
    reason: str


class JudgedRecords:
    """What was decided about the records of one partition, by offset, in the order in which it was decided."""

    def __init__(self) -> None:
        self._by_offset: dict[int, bytes | Judged] = {}
        self._reasons = NumberedTexts()

    def __len__(self) -> int:
        return len(self._by_offset)

    def __setitem__(self, offset: int, judged: Judged) -> None:
        self._by_offset[offset] = self._pack(judged) or judged

    def __getitem__(self, offset: int) -> Judged:
        return self._unpacked(self._by_offset[offset])

    def get(self, offset: int) -> Judged | None:
        """What was decided, if anything was."""
        found = self._by_offset.get(offset)
        return None if found is None else self._unpacked(found)

    def pop(self, offset: int) -> Judged | None:
        """The same, to be forgotten."""
        found = self._by_offset.pop(offset, None)
        return None if found is None else self._unpacked(found)

    def items(self) -> Iterator[tuple[int, Judged]]:
        """All that is not forgotten."""
        return ((offset, self._unpacked(found)) for offset, found in self._by_offset.items())

    def _pack(self, judged: Judged) -> bytes | None:
        """None for what does not have the usual form."""
        attempt = judged.sample_id.rpartition(".a")[2]
        is_usual = (
            attempt.isascii()
            and attempt.isdecimal()
            and judged.sample_id == sample_id(judged.group_id, judged.replica, int(attempt))
            and len(judged.digest) == _num_digest_bytes
        )
        try:
            return self._bytes_of(judged, int(attempt)) if is_usual else None
        except struct.error:
            return None

    def _bytes_of(self, judged: Judged, attempt: int) -> bytes:
        return _packed.pack(
            judged.digest,
            judged.entry,
            judged.group_id,
            judged.replica,
            attempt,
            _numbers[judged.disposition],
            _no_lag if judged.lag is None else judged.lag,
            self._reasons.number(judged.reason),
        )

    def _unpacked(self, found: bytes | Judged) -> Judged:
        if isinstance(found, Judged):
            return found
        digest, entry, group_id, replica, attempt, disposition, lag, reason = _packed.unpack(found)
        return Judged(
            entry=entry,
            sample_id=sample_id(group_id, replica, attempt),
            digest=digest,
            group_id=group_id,
            replica=replica,
            disposition=_dispositions[disposition],
            lag=None if lag == _no_lag else lag,
            reason=self._reasons[reason],
        )


class TrainedReplicas:
    """Which (group, replica) was trained first by which entry. The replicas of a group are mostly trained by one."""

    def __init__(self) -> None:
        self._by_group: dict[int, tuple[int, tuple[int, ...]]] = {}
        self._others: dict[tuple[int, int], int] = {}
        self._alike: dict[tuple[int, tuple[int, ...]], tuple[int, tuple[int, ...]]] = {}

    def __len__(self) -> int:
        return len(self._by_group)

    def add(self, group: int, replica: int, entry: int) -> None:
        """An entry trained it; one that did so before stays."""
        if self.by(group, replica) is not None:
            return
        first, replicas = self._by_group.get(group, (entry, ()))
        if first != entry:
            self._others[(group, replica)] = entry
            return
        trained = (entry, (*replicas, replica))
        if not self._alike or next(iter(self._alike))[0] != entry:
            self._alike = {}
        self._by_group[group] = self._alike.setdefault(trained, trained)

    def by(self, group: int, replica: int) -> int | None:
        """Index of the entry that trained it."""
        entry, replicas = self._by_group.get(group, (None, ()))
        return entry if replica in replicas else self._others.get((group, replica))
