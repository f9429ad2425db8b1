"""Every record of `samples` against its disposition: I1, the digests, the verdicts, and what each step trained."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from consumers.audit.batches import TrainedBatches
from consumers.audit.findings import Missing, Place
from consumers.audit.headers import check_headers
from consumers.audit.other_writers import is_of_nobody, is_unverified
from consumers.audit.samples import lag_of, possible_dispositions, recorded_sample, segments_of
from consumers.audit.sequences import check_sequences
from schemas import Disposition

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from consumers.audit.dead_letters import DeadLetterChecks
    from consumers.audit.issues import Reissues
    from consumers.audit.judged import Judged
    from consumers.audit.kept_turns import KeptTurns
    from consumers.audit.late_rewards import LateRewardChecks
    from consumers.audit.ledger_end import LedgerEnd
    from consumers.audit.ledger_index import LedgerIndex
    from consumers.audit.objects import ObjectChecks
    from consumers.audit.orders import Orders
    from consumers.audit.other_writers import OtherWriters
    from consumers.audit.samples import RecordedSample
    from consumers.audit.weights import WeightsChecks
    from rollog.kernel.broker.ports import Record


@dataclass(slots=True)
class SampleCounts:
    """Records of `samples` by what became of them; their sum is the number of records."""

    num_by_disposition: Counter[str] = field(default_factory=Counter)
    num_open: int = 0
    """Not judged yet: the run goes on."""
    num_after_close: int = 0
    num_undisposed: int = 0
    """Without the disposition they must have."""
    num_unknown: int = 0
    """Without one, where records of the ledger are missing."""

    @property
    def num_records(self) -> int:
        """All of them."""
        others = self.num_open + self.num_after_close + self.num_undisposed + self.num_unknown
        return self.num_by_disposition.total() + others


@dataclass(slots=True)
class SamplesPass:
    """Takes in the records of `samples`, in order within each partition.

    A disposition is removed from `ledger.judged` when its record is met: what stays has no record.
    """

    ledger: LedgerIndex
    reissues: Reissues
    dead_letters: DeadLetterChecks
    weights: WeightsChecks
    orders: Orders
    end: LedgerEnd
    other_writers: OtherWriters
    late_rewards: LateRewardChecks
    kept_turns: KeptTurns
    objects: ObjectChecks
    counts: SampleCounts = field(default_factory=SampleCounts)
    batches: TrainedBatches = field(init=False)

    def __post_init__(self) -> None:
        self.batches = TrainedBatches(self.ledger)

    def add(self, record: Record) -> None:
        """One record."""
        recorded = recorded_sample(record, self.ledger.num_partitions, self.ledger.config)
        place = Place(record.topic, record.partition, record.offset)
        judged = self.ledger.judged[record.partition].pop(record.offset)
        if recorded.sample is not None:
            self.orders.ended(recorded.sample.task_id)
            if self.end.is_empty:
                self.end.sample(recorded.sample.sample_id, place)
        self.ledger.checks.dispositions.num_checked += 1
        is_as_judged = has_true_headers = True
        if judged is None:
            self._check_unjudged(place)
        else:
            self.counts.num_by_disposition[judged.disposition] += 1
            self.dead_letters.meets(place, judged)
            is_as_judged = self._check_judged(recorded, judged, place)
            if not is_as_judged:
                self.orders.ended(judged.sample_id)
            else:
                self._check_verdict(recorded, judged, place)
                if judged.disposition is not Disposition.DEAD:
                    self.objects.check(recorded.sample, place)
                    has_true_headers = check_headers(
                        self.ledger.checks.headers, record, recorded.sample, place
                    )
                self._check_finished(recorded, judged, place)
        if not has_true_headers:
            self.ledger.checks.issues.num_unchecked += 1
        elif recorded.is_finished and is_as_judged and not (judged is not None and is_of_nobody(judged)):
            self.reissues.finished(recorded, judged)

    def conclude(self, begins: Mapping[int, int]) -> Iterator[Missing]:
        """Dispositions without a record: below `begins` retention deleted the records, else they are missing."""
        for partition, unmatched in sorted(self.ledger.judged.items()):
            begin = begins.get(partition, 0)
            deleted = Counter(judged.disposition for offset, judged in unmatched.items() if offset < begin)
            self.ledger.checks.digests.num_unchecked += deleted.total()
            if deleted:
                yield Missing(
                    what=f"{deleted.total()} judged record(s) of {self.ledger.samples_topic}, partition {partition}",
                    consequence=f"{_listed(deleted)}: neither bytes nor verdicts nor lags of these are checked",
                )
            for offset, judged in unmatched.items():
                place = Place(self.ledger.samples_topic, partition, offset)
                self.orders.ended(judged.sample_id)
                self.dead_letters.meets(place, judged)
                if offset >= begin:
                    judged_by = self.ledger.entries[judged.entry].name
                    self.ledger.checks.dispositions.find(
                        f"{judged.disposition} by {judged_by}, but no such record is there",
                        place=place,
                        record_id=judged.sample_id,
                        expected="a record",
                        found="none",
                    )

    def _check_unjudged(self, place: Place) -> None:
        """It came after the close, or is open above the low-water mark of a live run, or it was lost."""
        counts, close = self.counts, self.ledger.close
        claimed_by = self.ledger.first_mark_above(place.partition, place.offset)
        if close is not None and _is_behind(place, close.end_offsets):
            counts.num_after_close += 1
            return
        if close is None and claimed_by is None:
            counts.num_open += 1
            return
        if not self.ledger.is_complete:
            counts.num_unknown += 1
            self.ledger.checks.dispositions.num_unchecked += 1
            return
        by = (
            "the close"
            if claimed_by is None
            else f"the low-water mark of {self.ledger.entries[claimed_by].name}"
        )
        self.ledger.checks.dispositions.find(
            f"no disposition, though {by} stands above it",
            place=place,
            expected="one disposition",
            found="none",
        )
        counts.num_undisposed += 1

    def _check_judged(self, recorded: RecordedSample, judged: Judged, place: Place) -> bool:
        """Whether the record is the one that was judged."""
        entry, checks = self.ledger.entries[judged.entry], self.ledger.checks
        claimed_by = self.ledger.first_mark_above(place.partition, place.offset)
        if claimed_by is not None and claimed_by < judged.entry:
            checks.dispositions.find(
                "a low-water mark passed it before it was judged",
                place=place,
                record_id=judged.sample_id,
                expected=f"by {self.ledger.entries[claimed_by].name} or before",
                found=entry.name,
            )
        checks.digests.num_checked += 1
        checks.digests.expect(
            judged.digest.hex(),
            recorded.digest.hex(),
            f"not the record that was judged {judged.disposition} by {entry.name}",
            place=place,
            record_id=judged.sample_id,
        )
        return judged.digest == recorded.digest

    def _check_verdict(self, recorded: RecordedSample, judged: Judged, place: Place) -> None:
        """Whether the record can have got this disposition, and is what the ledger says it is."""
        entry, check = self.ledger.entries[judged.entry], self.ledger.checks.verdicts
        if judged.disposition is Disposition.DEAD and recorded.defect is None and is_unverified(judged):
            check.num_unchecked += 1
            return
        possible = possible_dispositions(recorded, judged, entry, self.ledger)
        if possible is None:
            check.num_unchecked += 1
        else:
            check.num_checked += 1
            if judged.disposition not in possible:
                check.find(
                    f"judged by {entry.name}, but not as its record is",
                    place=place,
                    record_id=judged.sample_id,
                    expected=" or ".join(sorted(possible)) or "no disposition yet",
                    found=f"{judged.disposition} ({judged.reason or 'no reason given'})",
                )
        sample = recorded.sample
        if sample is not None and recorded.defect is None:
            identity = f"{sample.sample_id}, group {sample.group_id}, replica {sample.replica}"
            said = f"{judged.sample_id}, group {judged.group_id}, replica {judged.replica}"
            check.expect(
                identity, said, f"whose it is, by {entry.name}", place=place, record_id=sample.sample_id
            )

    def _check_finished(self, recorded: RecordedSample, judged: Judged, place: Place) -> None:
        """The reward of a finished sample; of a trained one what it adds to its step, and which weights made it."""
        entry, sample = self.ledger.entries[judged.entry], recorded.sample
        if not recorded.is_finished or sample is None:
            return
        sample = self.late_rewards.judged(sample, judged, place)
        if judged.disposition is not Disposition.TRAINED:
            return
        version = entry.record.version - 1
        self.batches.add(sample, entry.record.version, place)
        self.ledger.checks.freshness.num_checked += len(segments_of(sample))
        self.ledger.checks.freshness.expect(
            lag_of(sample, version),
            judged.lag,
            f"its lag, by {entry.name}",
            place=place,
            record_id=sample.sample_id,
        )
        whole = self.objects.whole(sample) or sample
        check_sequences(self.ledger.checks.sequences, whole, place)
        self.weights.trained(sample, version, place)
        if not self.other_writers.trained(sample, judged, place):
            self.orders.trained(sample, place)
            self.kept_turns.trained(sample, place)


def _is_behind(place: Place, end_offsets: tuple[int, ...]) -> bool:
    return place.partition < len(end_offsets) and place.offset >= end_offsets[place.partition]


def _listed(counts: Counter[Disposition]) -> str:
    return ", ".join(f"{count} {disposition}" for disposition, count in sorted(counts.items()))
