"""Whether the ledger ends where it says: nothing on other topics, and no file, may point beyond its end.

`steps` is read first and its end read again last. What a trainer commits with a ledger record, and what others write
after they have read one, is therefore never ahead of the ledger as it stands at the end, however much is written
meanwhile. A transaction shows up topic by topic, so the caller may read the end again for a short while before it
believes that something points beyond it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from consumers.audit.weights import version_of_file
from schemas import LedgerKind, LedgerRecord
from schemas.codec import SchemaError, decode_as

if TYPE_CHECKING:
    from collections.abc import Iterable

    from consumers.audit.findings import Check, Place
    from rollog.kernel.broker.ports import Record


@dataclass(slots=True, kw_only=True)
class LedgerEnd:
    """What the ledger says up to its end, read again, and everything that may point beyond it.

    `position` is the end offset of `steps`, `version` the newest one; both grow with `read_again`.
    """

    check: Check
    position: int
    version: int = -1
    is_closed: bool = False
    is_empty: bool = False
    """Whether it had no record at the first look."""
    num_records: int = 0
    _judged: set[tuple[int, int]] = field(default_factory=set)
    _versions: list[tuple[int, str, Place]] = field(default_factory=list)
    _tasks: list[tuple[int, str, Place]] = field(default_factory=list)
    _letters: list[tuple[tuple[int, int], Place]] = field(default_factory=list)
    _closed: list[Place] = field(default_factory=list)
    _samples: list[tuple[str, Place]] = field(default_factory=list)
    _num_samples: int = 0
    _files: list[tuple[int, str]] = field(default_factory=list)

    def read_again(self, records: Iterable[Record], position: int) -> None:
        """What stands behind the end that was read first, up to `position`; its chain is left to the next audit."""
        for record in records:
            self.num_records += 1
            try:
                decoded = decode_as(LedgerRecord, record.value or b"")
            except SchemaError:
                continue
            self.version = max(self.version, decoded.version)
            self.is_closed |= decoded.kind is LedgerKind.CLOSE
            self._judged |= {(verdict.partition, verdict.offset) for verdict in decoded.verdicts}
        self.position = max(self.position, position)

    def names_version(self, version: int, what: str, place: Place) -> None:
        """A record names a version that the ledger, as read first, does not have yet."""
        self._versions.append((version, what, place))

    def task_points_beyond(self, task_id: str, place: Place, ledger_position: int) -> None:
        """The dispatcher had read further than the end that was read first."""
        self._tasks.append((ledger_position, f"task {task_id}", place))

    def letter_without_verdict(self, partition: int, offset: int, place: Place) -> None:
        """A dead letter of a record of `samples` that the ledger, as read first, has not judged."""
        self._letters.append(((partition, offset), place))

    def says_closed(self, place: Place) -> None:
        """`RunClosed` follows the close record."""
        self._closed.append(place)

    def sample(self, sample_id: str, place: Place) -> None:
        """There is no sample before there is a genesis record."""
        self._num_samples += 1
        if self._num_samples == 1:
            self._samples.append((sample_id, place))

    def take_files(self, names: Iterable[str]) -> None:
        """The files of the weights store."""
        self._files += [(version_of_file(name), name) for name in names]

    @property
    def is_passed(self) -> bool:
        """Whether anything points beyond the end, as far as it has been read."""
        return bool(
            self._newer_versions()
            or self._later_tasks()
            or self._unjudged_letters()
            or (self._closed and not self.is_closed)
            or self._newer_files()
            or (self._samples and not self.num_records)
        )

    def conclude(self) -> None:
        """Name everything that points beyond the end."""
        check = self.check
        ends = f"the ledger's end at offset {self.position}, version {self.version}"
        gone = "the end of the ledger was cut off, or this was written by nobody of the run"
        for version, what, place in self._newer_versions():
            check.find(
                f"{what} names version {version}: {gone}",
                place=place,
                expected=ends,
                found=f"version {version}",
            )
        for position, name, place in self._later_tasks():
            check.find(
                f"it was issued when more of the ledger had been read: {gone}",
                place=place,
                record_id=name,
                expected=ends,
                found=f"offset {position}",
            )
        for (partition, offset), place in self._unjudged_letters():
            check.find(
                f"a dead letter of samples, partition {partition}, offset {offset}, which no ledger record judges: "
                f"{gone}",
                place=place,
                expected="disposition dead",
                found="none",
            )
        for place in self._closed if not self.is_closed else ():
            check.find(
                f"it says that the run is closed: {gone}",
                place=place,
                expected="a close record",
                found="none",
            )
        for version, name in self._newer_files():
            check.find(
                f"the weights file is of a version far beyond the ledger: {gone}",
                record_id=name,
                expected=f"version {self.version + 1} or less",
                found=f"version {version}",
            )

    def conclude_empty(self) -> None:
        """Name the first of samples without any ledger; there are none before genesis."""
        self.check.num_checked += self.num_records
        for sample_id, place in self._samples if not self.num_records else ():
            self.check.find(
                f"the ledger is empty, but there are {self._num_samples} sample(s), of which this is the first: "
                "nothing is sampled before genesis",
                place=place,
                record_id=sample_id,
                expected="a genesis record",
                found="none",
            )

    def _newer_versions(self) -> list[tuple[int, str, Place]]:
        return [named for named in self._versions if named[0] > self.version]

    def _later_tasks(self) -> list[tuple[int, str, Place]]:
        return [task for task in self._tasks if task[0] > self.position]

    def _unjudged_letters(self) -> list[tuple[tuple[int, int], Place]]:
        return [letter for letter in self._letters if letter[0] not in self._judged]

    def _newer_files(self) -> list[tuple[int, str]]:
        """Of the version after the newest there may be a file: it is written before it is committed."""
        return [file for file in self._files if file[0] > self.version + 1]
