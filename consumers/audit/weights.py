"""I4: every name of weights in the run, and every file, against the versions of the ledger."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from consumers.audit.findings import Place
from consumers.audit.samples import segments_of
from schemas import Sample, Status, WeightsPruned, WeightVersion, WorkerStatus
from schemas.codec import SchemaError, decode, decode_as

if TYPE_CHECKING:
    from consumers.audit.ledger_end import LedgerEnd
    from consumers.audit.ledger_index import LedgerIndex
    from rollog.kernel.broker.ports import Record
    from schemas import Segment, WeightsBase

manifest_format = "manifest-1"
_manifest_name = re.compile(r"v[0-9]{6,9}-[0-9a-f]{16}\.manifest")


@dataclass(slots=True)
class WeightsChecks:
    """Takes in the records of `weights`, `evaluations` and `workers`, and trained samples.

    While the run is not closed, what names a version newer than the ledger that was read is looked at again at its end.
    """

    ledger: LedgerIndex
    end: LedgerEnd
    is_live: bool
    notices: dict[int, tuple[Place, WeightVersion]] = field(default_factory=dict)
    pruned: set[int] = field(default_factory=set)
    """Versions whose files the run let go: they are not looked for."""
    num_unreadable: int = 0
    _newest_noticed: int = -1
    unexpected: list[str] = field(default_factory=list)
    """Workers whose heartbeats name weights that are not in the ledger."""

    def add(self, record: Record) -> None:
        """One record of `weights`."""
        place = Place(record.topic, record.partition, record.offset)
        try:
            decoded = decode(record.value or b"")
        except SchemaError:
            self.num_unreadable += 1
            return
        match decoded:
            case WeightVersion():
                self._newest_noticed = max(self._newest_noticed, decoded.version)
                self._notice(decoded, place)
            case WeightsPruned():
                self._prune(decoded, place)
            case _:
                self.num_unreadable += 1

    def _prune(self, pruned: WeightsPruned, place: Place) -> None:
        """Only what was noticed before, and is neither the first nor the newest version, may be let go."""
        check = self.ledger.checks.versions
        for version in pruned.versions:
            if self._is_too_new(version):
                self.end.names_version(version, "a record of pruned versions", place)
                continue
            check.num_checked += 1
            if not 0 < version < self._newest_noticed:
                check.find(
                    "a version is said to be pruned that no trainer lets go",
                    place=place,
                    record_id=f"version {version}",
                    expected=f"one from 1 to {self._newest_noticed - 1}",
                    found=version,
                )
            else:
                self.pruned.add(version)

    def _notice(self, notice: WeightVersion, place: Place) -> None:
        """A notice names a version of the ledger, its sha256 and a name that fits, once unless it is stored again."""
        if self._is_too_new(notice.version):
            self.end.names_version(notice.version, "a notice", place)
            return
        check, version = self.ledger.checks.versions, f"version {notice.version}"
        check.num_checked += 1
        if notice.version in self.notices and not self._is_published_again(notice):
            first = self.notices[notice.version][0]
            check.find(
                "a second notice",
                place=place,
                record_id=version,
                expected=f"one, at {first}",
                found=notice.name,
            )
            return
        self.notices[notice.version] = (place, notice)
        self.pruned.discard(notice.version)
        sha256 = self.ledger.weights.get(notice.version)
        if sha256 is None and self.ledger.knows(notice.version, notice.digest) is None:
            check.num_unchecked += 1
        elif sha256 != notice.sha256:
            check.find(
                "the notice names other weights than the ledger",
                place=place,
                record_id=version,
                expected=sha256 or "no such version",
                found=notice.sha256,
            )
        else:
            self._check_name(notice, sha256, place)

    def _is_published_again(self, notice: WeightVersion) -> bool:
        """Whether a later notice of the same weights names other files: a store had lost those of the first."""
        first = self.notices[notice.version][1]
        return (
            first.format == notice.format == manifest_format
            and first.sha256 == notice.sha256
            and first.name != notice.name
        )

    def _check_name(self, notice: WeightVersion, sha256: str, place: Place) -> None:
        """The name follows from what the notice says, and its format from what a sha256 is of in this run."""
        check, record_id = self.ledger.checks.versions, f"version {notice.version}"
        genesis = self.ledger.genesis
        if genesis is not None:
            expected_format = "safetensors" if genesis.weights_identity == "file" else manifest_format
            check.expect(
                expected_format, notice.format, "format of the notice", place=place, record_id=record_id
            )
        if notice.format == manifest_format:
            is_named_well = (
                _manifest_name.fullmatch(notice.name) and version_of_file(notice.name) == notice.version
            )
            expected = f"v{notice.version:06d}-(16 digits).manifest"
        else:
            expected = weights_file_name(notice.version, sha256)
            is_named_well = notice.name == expected
        if not is_named_well:
            check.find(
                "the notice names another file than its version and sha256 make",
                place=place,
                record_id=record_id,
                expected=expected,
                found=notice.name,
            )
        if notice.base is not None:
            self._check_base(notice, notice.base, place)

    def _check_base(self, notice: WeightVersion, base: WeightsBase, place: Place) -> None:
        """A patch is of a version that was committed before."""
        committed = self.ledger.weights.get(base.version)
        if base.version < notice.version and (
            committed == base.sha256 or self.ledger.knows(base.version, base.sha256[:16]) is None
        ):
            return
        self.ledger.checks.versions.find(
            f"the notice is of changes since version {base.version}, which is not one before",
            place=place,
            record_id=f"version {notice.version}",
            expected=committed or "no such version",
            found=base.sha256,
        )

    def trained(self, sample: Sample, version: int | None, place: Place) -> None:
        """Every segment of every sequence of a trained sample was generated with weights committed before its step."""
        check = self.ledger.checks.versions
        for segment in segments_of(sample):
            check.num_checked += 1
            is_known = self.ledger.knows(segment.version, segment.weights_digest)
            if is_known is None or version is None:
                check.num_unchecked += 1
            elif not is_known or segment.version > version:
                self._unknown(segment, place, sample.sample_id, "trained, though it")

    def evaluation(self, record: Record) -> None:
        """Every segment of a finished evaluation was generated with committed weights."""
        place = Place(record.topic, record.partition, record.offset)
        try:
            sample = decode_as(Sample, record.value or b"")
        except SchemaError:
            return  # the dispatcher sets it aside, and no score counts it
        if sample.status is not Status.FINISHED:
            return
        for segment in segments_of(sample):
            if self._is_too_new(segment.version):
                self.end.names_version(segment.version, "an evaluation", place)
                continue
            self.ledger.checks.versions.num_checked += 1
            if self.ledger.knows(segment.version, segment.weights_digest) is False:
                self._unknown(segment, place, sample.sample_id, "an evaluation that")

    def served(self, record: Record) -> None:
        """A worker's last heartbeat says which weights it serves."""
        try:
            status = decode_as(WorkerStatus, record.value or b"")
        except SchemaError:
            return  # a tombstone, or what the dispatcher sets aside
        if status.served_version is None or self._is_too_new(status.served_version):
            return
        self.ledger.checks.versions.num_checked += 1
        if self.ledger.knows(status.served_version, status.served_digest or "") is False:
            self.unexpected.append(
                f"{status.worker_id}: version {status.served_version}, {status.served_digest}"
            )

    def conclude(self, *, are_notices_cut: bool) -> None:
        """Every version of the ledger has its notice."""
        newest = self.ledger.version
        for version, sha256 in sorted(self.ledger.weights.items()):
            if version in self.notices:
                continue
            if are_notices_cut or (self.is_live and version == newest):
                self.ledger.checks.versions.num_unchecked += 1  # a transaction shows up topic by topic
                continue
            self.ledger.checks.versions.find(
                "no notice", record_id=f"version {version}", expected=sha256, found="none"
            )

    def _is_too_new(self, version: int) -> bool:
        return self.is_live and version > self.ledger.version

    def _unknown(self, segment: Segment, place: Place, sample_id: str, whose: str) -> None:
        committed = self.ledger.weights.get(segment.version)
        self.ledger.checks.versions.find(
            f"{whose} names weights of version {segment.version} that were not committed before",
            place=place,
            record_id=sample_id,
            expected="no such version" if committed is None else committed[: len(segment.weights_digest)],
            found=segment.weights_digest,
        )


def version_of_file(name: str) -> int:
    """The version in the name of a file of the weights store."""
    return int(name[1:].partition("-")[0])


def weights_file_name(version: int, sha256: str) -> str:
    """Name of the one file of a version, in a run where a sha256 is of that file."""
    return f"v{version:06d}-{sha256[:16]}.safetensors"
