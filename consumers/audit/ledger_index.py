"""What the ledger says, folded without the rules of trainer and dispatcher, and where it contradicts itself."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from consumers.audit.config import AuditConfig, config_of
from consumers.audit.findings import Place
from consumers.audit.judged import Judged, JudgedRecords, TrainedReplicas
from consumers.audit.reward_reach import ReadingOfRewards
from consumers.audit.step_facts import StepFacts, facts_of
from schemas import Amend, Close, Disposition, Genesis, LedgerKind, Rebase, Step

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from consumers.audit.chain import Link
    from consumers.audit.findings import Checks
    from schemas import ClosedGroup, LedgerBody, LedgerRecord, RewardReference, Verdict

num_weights_digits = 16
"""Hexadecimal digits of the sha256 of a version's weights that segments carry."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One ledger record without what it lists and without its body, and what was in force when it was written.

    `step` is what is kept of the body of a step. `alpha` and `version` are those of the record before; None where that
    one is missing. `knows_past` says that no record before it is missing, so that what it decided can be worked out
    again.
    """

    index: int
    place: Place
    record: LedgerRecord
    step: StepFacts | None
    version: int | None
    alpha: float | None
    knows_past: bool
    num_trained: int
    config: AuditConfig

    @property
    def name(self) -> str:
        """The record as people call it."""
        return f"record {self.record.sequence} ({self.record.kind})"


@dataclass(slots=True)
class LedgerIndex:
    """Takes in the links of the chain in order; `judged` holds dispositions by partition and offset."""

    samples_topic: str
    num_partitions: int
    checks: Checks
    entries: list[Entry] = field(default_factory=list)
    weights: dict[int, str] = field(default_factory=dict)
    judged: defaultdict[int, JudgedRecords] = field(default_factory=lambda: defaultdict(JudgedRecords))
    trained: TrainedReplicas = field(default_factory=TrainedReplicas)
    late_rewards: dict[tuple[int, int], RewardReference] = field(default_factory=dict)
    """The rewards that verdicts name, by place of the sample."""
    reading_of_rewards: ReadingOfRewards = field(default_factory=ReadingOfRewards)
    closed_groups: dict[int, tuple[int, Disposition]] = field(default_factory=dict)
    num_by_disposition: Counter[Disposition] = field(default_factory=Counter)
    config: AuditConfig = field(default_factory=AuditConfig)
    close: Close | None = None
    is_complete: bool = True
    genesis: Genesis | None = None
    _marks: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))
    _revision: int = 0
    _reward_position: int = 0

    @property
    def version(self) -> int:
        """The newest version; -1 without any."""
        return max(self.weights, default=-1)

    def add(self, link: Link) -> Entry:
        """Fold one more record."""
        last = self.entries[-1].record if self.entries and link.follows else None
        self.is_complete &= link.follows
        record = link.record
        entry = Entry(
            index=len(self.entries),
            place=link.place,
            record=replace(record, verdicts=(), closed_groups=(), low_water_marks=(), body=None),
            step=facts_of(record.body) if isinstance(record.body, Step) else None,
            version=None if last is None else last.version,
            alpha=None if last is None else last.alpha,
            knows_past=self.is_complete,
            num_trained=sum(verdict.disposition is Disposition.TRAINED for verdict in record.verdicts),
            config=self.config,
        )
        self._check_alpha(entry, record.body)
        self._take_body(entry, record.body)
        self._take_marks(entry, record.low_water_marks)
        self._check_reward_position(entry)
        self.reading_of_rewards.add(record)
        for verdict in record.verdicts:
            self._judge(verdict, entry)
        closings = {group.outcome: (entry.index, group.outcome) for group in record.closed_groups}
        for group in record.closed_groups:
            self._close_group(group, entry, closings[group.outcome])
        self._check_filtered(record.verdicts, entry)
        self.entries.append(entry)
        return entry

    def knows(self, version: int, digest: str) -> bool | None:
        """Whether this pair was committed; None if it may be in a record that is missing."""
        if version in self.weights:
            return digest == self.weights[version][:num_weights_digits]
        return None if not self.is_complete and version <= self.version else False

    def first_mark_above(self, partition: int, offset: int) -> int | None:
        """Index of the first entry whose low-water mark claims the disposition of this record; None if none does."""
        marks = self._marks[partition]
        index = bisect_right(marks, offset)
        return index if index < len(marks) else None

    def _check_alpha(self, entry: Entry, body: LedgerBody) -> None:
        """What is in force at a step is written before it."""
        record, check = entry.record, self.checks.freshness
        if entry.alpha is None:
            return
        if isinstance(body, Step):
            check.expect(entry.alpha, body.alpha, "alpha of a step", place=entry.place, record_id=entry.name)
        elif record.kind in (LedgerKind.VERDICTS, LedgerKind.CLOSE):
            check.expect(
                entry.alpha,
                record.alpha,
                "alpha changes without a step",
                place=entry.place,
                record_id=entry.name,
            )

    def _take_body(self, entry: Entry, body: LedgerBody) -> None:
        match body:
            case Genesis():
                self.genesis = self.genesis or body
                self.config = config_of(body.manifest_json)
                self.weights[entry.record.version] = body.weights_sha256
            case Step():
                self._check_start(body, entry)
                self.weights[entry.record.version] = body.weights_sha256
            case Rebase():
                self.weights[entry.record.version] = body.weights_sha256
            case Amend(revision=revision, changes_json=changes):
                self._revision = revision
                self.config = config_of(changes, self.config)
            case Close():
                self.close = body

    def _check_start(self, body: Step, entry: Entry) -> None:
        """A step starts from what the version before it ended with."""
        check = self.checks.versions
        check.num_checked += 1
        if entry.version is not None and entry.version in self.weights:
            check.expect(
                self.weights[entry.version],
                body.weights_sha256_before,
                f"the step starts from other weights than those of version {entry.version}",
                place=entry.place,
                record_id=entry.name,
            )
        if entry.knows_past:
            self.checks.steps.expect(
                self._revision,
                body.revision,
                "revision of the settings",
                place=entry.place,
                record_id=entry.name,
            )

    def _take_marks(self, entry: Entry, marks: Sequence[int]) -> None:
        check = self.checks.dispositions
        if len(marks) != self.num_partitions:
            check.find(
                "low-water marks for another number of partitions",
                place=entry.place,
                record_id=entry.name,
                expected=self.num_partitions,
                found=len(marks),
            )
        for partition in range(self.num_partitions):
            before = self._marks[partition][-1] if self._marks[partition] else 0
            mark = marks[partition] if partition < len(marks) else before
            if mark < before:
                check.find(
                    f"the low-water mark of partition {partition} goes back",
                    place=entry.place,
                    record_id=entry.name,
                    expected=f"{before} or more",
                    found=mark,
                )
            self._marks[partition].append(max(mark, before))

    def _check_reward_position(self, entry: Entry) -> None:
        position, mark = entry.record.reward_position, entry.record.reward_mark
        if position < self._reward_position or mark > position:
            self.checks.late_rewards.find(
                "how far rewards were read goes back, or a new reader would begin behind it",
                place=entry.place,
                record_id=entry.name,
                expected=f"a position of {self._reward_position} or more, a mark up to it",
                found=f"position {position}, mark {mark}",
            )
        self._reward_position = max(self._reward_position, position)

    def _judge(self, verdict: Verdict, entry: Entry) -> None:
        place = Place(self.samples_topic, verdict.partition, verdict.offset)
        earlier = self.judged[verdict.partition].get(verdict.offset)
        if earlier is not None:
            self.checks.dispositions.find(
                f"a second disposition, by {entry.name} at offset {entry.place.offset} of the ledger",
                place=place,
                record_id=verdict.sample_id,
                expected=f"{earlier.disposition}, by {self._entry_name(earlier.entry, entry)}",
                found=verdict.disposition,
            )
        else:
            self.judged[verdict.partition][verdict.offset] = Judged(
                entry=entry.index,
                sample_id=verdict.sample_id,
                digest=verdict.digest,
                group_id=verdict.group_id,
                replica=verdict.replica,
                disposition=verdict.disposition,
                lag=verdict.lag,
                reason=verdict.reason,
            )
            self.num_by_disposition[verdict.disposition] += 1
            if verdict.late_reward is not None:
                self.late_rewards[(verdict.partition, verdict.offset)] = verdict.late_reward
        if verdict.disposition is Disposition.TRAINED:
            self._train(verdict, entry, place)

    def _train(self, verdict: Verdict, entry: Entry, place: Place) -> None:
        check = self.checks.trained
        check.num_checked += 1
        if entry.record.kind is not LedgerKind.STEP:
            check.find(
                "trained outside of a step", place=place, record_id=verdict.sample_id, found=entry.name
            )
        trained_by = self.trained.by(verdict.group_id, verdict.replica)
        if trained_by is not None:
            first = self._entry_name(trained_by, entry)
            check.find(
                f"group {verdict.group_id}, replica {verdict.replica} is trained twice",
                place=place,
                record_id=verdict.sample_id,
                expected=f"once, by {first}",
                found=f"again by {entry.name}",
            )
        self.trained.add(verdict.group_id, verdict.replica, entry.index)

    def _close_group(self, group: ClosedGroup, entry: Entry, closing: tuple[int, Disposition]) -> None:
        if group.group_id in self.closed_groups:
            index, outcome = self.closed_groups[group.group_id]
            self.checks.verdicts.find(
                f"group {group.group_id} is closed twice",
                place=entry.place,
                record_id=entry.name,
                expected=f"{outcome}, by {self._entry_name(index, entry)}",
                found=f"{group.outcome} again",
            )
            return
        self.closed_groups[group.group_id] = closing

    def _check_filtered(self, verdicts: Iterable[Verdict], entry: Entry) -> None:
        if self.config.group_size is None:
            return
        for group, replicas in partly_filtered(verdicts, self.config.group_size):
            self.checks.verdicts.find(
                f"group {group} is not filtered as a whole",
                place=entry.place,
                record_id=entry.name,
                expected=f"{self.config.group_size} different replicas",
                found=replicas,
            )

    def _entry_name(self, index: int, current: Entry) -> str:
        return current.name if index == current.index else self.entries[index].name


def partly_filtered(verdicts: Iterable[Verdict], group_size: int) -> Iterator[tuple[int, list[int]]]:
    """Groups of which not exactly one sample of each of `group_size` replicas is filtered, with those that are."""
    replicas: defaultdict[int, list[int]] = defaultdict(list)
    for verdict in verdicts:
        if verdict.disposition is Disposition.FILTERED:
            replicas[verdict.group_id].append(verdict.replica)
    for group, found in replicas.items():
        if not len(found) == len(set(found)) == group_size:
            yield group, found
