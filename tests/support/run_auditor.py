"""An independent reader of a run's topics that checks the invariants as the records appear.

It shares no rule with the roles: what `rollog audit` checks it takes from there, record by record and, at the end, as
a whole; admission (I9) and what workers made of void tasks are worked out here.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from fractions import Fraction
from typing import TYPE_CHECKING

from consumers.audit.auditor import audit_run
from consumers.audit.batches import TrainedBatch, batch_faults
from consumers.audit.chain import Chain
from consumers.audit.findings import Checks
from consumers.audit.findings import Place as RecordPlace
from consumers.audit.ledger_index import Entry, LedgerIndex
from consumers.audit.samples import RecordedSample, possible_dispositions, recorded_sample
from rollog.kernel.broker.ports import TopicPartition
from schemas import (
    Cancel,
    CancelReason,
    Disposition,
    Fence,
    FinishReason,
    LedgerKind,
    RolloutTask,
    Status,
    tasks_in,
)
from schemas.codec import decode

if TYPE_CHECKING:
    from rollog.kernel.broker.ports import Broker, Record
    from rollog.kernel.broker.topics import RunTopics
    from rollog.kernel.weights import WeightsStore
    from rollog.settings.groups import FreshnessConfig, GroupConfig
    from schemas import LedgerRecord, Sample, Verdict

Place = tuple[int, int]


@dataclass
class RunAuditor:
    """Call `look` after every event and `conclude` after the end; AssertionError names what is broken."""

    broker: Broker
    topics: RunTopics
    groups: GroupConfig
    freshness: FreshnessConfig
    num_steps: int
    num_sample_partitions: int
    num_task_partitions: int
    samples: dict[Place, RecordedSample] = field(default_factory=dict)
    tasks: dict[str, RolloutTask] = field(default_factory=dict)
    filtered_as: Counter[str] = field(default_factory=Counter)
    cancelled: dict[str, CancelReason] = field(default_factory=dict)
    nobodys: list[Verdict] = field(default_factory=list)
    _fences: Counter[int] = field(default_factory=Counter)
    _unchecked: list[RolloutTask] = field(default_factory=list)
    _attempts: set[tuple[int, int, int]] = field(default_factory=set)
    _members: defaultdict[int, list[Place]] = field(default_factory=lambda: defaultdict(list))

    def __post_init__(self) -> None:
        counts = {
            self.topics.samples: self.num_sample_partitions,
            self.topics.tasks: self.num_task_partitions,
            self.topics.steps: 1,
        }
        self._checks = Checks()
        self._chain = Chain(self._checks.chain)
        self.ledger = LedgerIndex(self.topics.samples, self.num_sample_partitions, self._checks)
        self._consumer = self.broker.consumer(client_id="auditor")
        self._consumer.assign(
            {TopicPartition(topic, number): 0 for topic, count in counts.items() for number in range(count)}
        )

    @property
    def end_offsets(self) -> tuple[int, ...] | None:
        """Those of the close record; None before it."""
        return None if self.ledger.close is None else self.ledger.close.end_offsets

    @property
    def outcomes(self) -> dict[int, Disposition]:
        """How groups have ended so far."""
        return {group: outcome for group, (_, outcome) in self.ledger.closed_groups.items()}

    def look(self) -> None:
        """Check everything that is new. Records a transaction holds back are looked at later."""
        records = self._consumer.poll(0.0)
        order = {self.topics.tasks: 0, self.topics.samples: 1, self.topics.steps: 2}
        for record in sorted(records, key=lambda found: (order[found.topic], found.partition, found.offset)):
            if record.topic == self.topics.tasks:
                self._task(record)
            elif record.topic == self.topics.samples:
                self._sample(record)
            else:
                self._ledger_record(record)

    def check_issues(self) -> None:
        """I9 at every task issued since the last call; all tasks issued before must have been looked at."""
        for task in sorted(self._unchecked, key=_issue_order):
            self._check_issue(task)
        self._unchecked.clear()

    def audit_live(self, weights: WeightsStore) -> None:
        """What is there so far passes the audit, too."""
        report = audit_run(self.broker, self.topics, weights)
        assert report.is_clean, "\n".join(report.lines())

    def conclude(self, weights: WeightsStore) -> None:
        """The run is closed: the whole of it passes the audit."""
        self.look()
        self.check_issues()
        assert self.end_offsets is not None, "the ledger is not closed"
        report = audit_run(self.broker, self.topics, weights)
        assert report.is_clean, "\n".join(report.lines())
        assert not report.missing
        num_after_close = sum(offset >= self.end_offsets[partition] for partition, offset in self.samples)
        assert report.samples.num_records == len(self.samples)
        assert report.samples.num_after_close == num_after_close

    def _task(self, record: Record) -> None:
        decoded = decode(record.value or b"")
        if isinstance(decoded, Fence):
            self._fences[record.partition] = max(self._fences[record.partition], decoded.epoch)
        if isinstance(decoded, Cancel):
            self.cancelled[decoded.task_id] = decoded.reason
        for task in tasks_in(decoded):
            self._ordered(task, record)

    def _ordered(self, decoded: RolloutTask, record: Record) -> None:
        if decoded.epoch < self._fences[record.partition]:
            return
        if decoded.task_id in self.tasks:
            return  # delivered twice
        for replica in range(decoded.replica, decoded.replica + decoded.num_replicas):
            attempt = (decoded.group_id, replica, decoded.attempt)
            assert attempt not in self._attempts, f"attempt {attempt} was issued twice"
            self._attempts.add(attempt)
        self.tasks[decoded.task_id] = decoded
        self._unchecked.append(decoded)

    def _sample(self, record: Record) -> None:
        recorded = recorded_sample(record, self.num_sample_partitions, self.ledger.config)
        self.samples[(record.partition, record.offset)] = recorded
        sample = recorded.sample
        if sample is None:
            return
        self._members[sample.group_id].append((record.partition, record.offset))
        if sample.status is not Status.LOST:
            assert sample.task_id in self.tasks, f"a worker made {sample.sample_id} for a void task"

    def _ledger_record(self, record: Record) -> None:
        link = self._chain.add(record)
        assert link is not None
        entry = self.ledger.add(link)
        self._check_filtered(link.record)
        batch = TrainedBatch()
        for verdict in link.record.verdicts:
            self._check_verdict(verdict, entry)
            recorded = self.samples[(verdict.partition, verdict.offset)]
            if verdict.disposition is Disposition.TRAINED and recorded.sample is not None:
                place = RecordPlace(self.topics.samples, verdict.partition, verdict.offset)
                batch.add(recorded.sample, entry.record.version - 1, place)
        if entry.record.kind is LedgerKind.STEP:
            assert entry.alpha == self.freshness.alpha
            assert batch.groups
            assert not list(batch_faults(batch, entry.alpha, entry.config))
        findings = [str(finding) for check in self._checks.all() for finding in check.findings]
        assert not findings, "\n".join(findings)

    def _check_filtered(self, entry: LedgerRecord) -> None:
        """Only whole groups are filtered, one sample of each of G replicas, and for a reason that holds; no other."""
        verdicts: defaultdict[int, list[Verdict]] = defaultdict(list)
        for verdict in entry.verdicts:
            if verdict.disposition in (Disposition.FILTERED, Disposition.TRAINED):
                verdicts[verdict.group_id].append(verdict)
        for group, found in verdicts.items():
            replicas = {verdict.replica for verdict in found}
            assert len(found) == len(replicas) == self.groups.group_size, f"group {group} judged by {found}"
            samples = [self.samples[(verdict.partition, verdict.offset)].sample for verdict in found]
            refused_by = self._filters_that_refuse([sample for sample in samples if sample is not None])
            reasons = {verdict.reason for verdict in found if verdict.disposition is Disposition.FILTERED}
            assert reasons <= refused_by, f"group {group} is filtered as {reasons}, refused by {refused_by}"
            assert bool(reasons) == bool(refused_by), f"group {group} is trained, refused by {refused_by}"
            self.filtered_as.update(reasons)

    def _check_verdict(self, verdict: Verdict, entry: Entry) -> None:
        place = (verdict.partition, verdict.offset)
        assert place in self.samples, f"I1: a disposition of {place}, where there is no record"
        recorded = self.samples[place]
        assert verdict.digest == recorded.digest
        if recorded.defect is None and recorded.sample is not None and verdict.group_id == -1:
            self._check_nobodys(verdict, recorded.sample)
            return
        judged = self.ledger.judged[verdict.partition][verdict.offset]
        possible = possible_dispositions(recorded, judged, entry, self.ledger)
        assert possible is not None
        assert verdict.disposition in possible, f"{verdict} by {entry.name} can only be {sorted(possible)}"

    def _check_nobodys(self, verdict: Verdict, sample: Sample) -> None:
        """A sound sample counts for no group only if no dispatcher ordered it; one that lost its place cannot order."""
        assert verdict.disposition is Disposition.DEAD, f"{verdict} names no group"
        assert sample.task_id not in self.tasks, f"{verdict} names no group, but its task is in force"
        self.nobodys.append(verdict)

    def _check_issue(self, task: RolloutTask) -> None:
        known = [entry for entry in self.ledger.entries if entry.place.offset < task.ledger_position]
        assert known[-1].record.version == task.issued_version
        group = task.group_id
        earlier = [found for found in self.tasks.values() if _issue_order(found) < _issue_order(task)]
        if any(found.group_id == group for found in earlier):
            return
        closed = {number for number, (index, _) in self.ledger.closed_groups.items() if index < len(known)}
        open_groups = {found.group_id for found in earlier} - closed
        bound = self._admission_bound(task, open_groups, len(known))
        assert len(open_groups) < bound, (
            f"I9: group {group} is issued beside {sorted(open_groups)}, at most {bound} may be open"
        )

    def _admission_bound(self, task: RolloutTask, open_groups: set[int], num_known: int) -> int:
        batch = self.groups.groups_per_batch
        needed = (self.num_steps - task.issued_version) * batch
        if needed <= 0:
            return 0
        window = math.floor((1 + Fraction(str(self.freshness.alpha))) * batch)
        num_filtered = sum(self._will_be_filtered(group, task, num_known) for group in open_groups)
        in_queue = min(window, needed) + self.groups.redundant_groups
        return in_queue + min(num_filtered, in_queue)

    def _will_be_filtered(self, group: int, task: RolloutTask, num_known: int) -> bool:
        """Whether a dispatcher that knew this version, or an earlier one, could see that it will be."""
        versions = range(task.issued_version + 1)
        return any(self._is_refused(group, task, num_known, version) for version in versions)

    def _is_refused(self, group: int, task: RolloutTask, num_known: int, version: int) -> bool:
        first: dict[int, Sample] = {}
        for place in sorted(self._members[group]):
            sample = self.samples[place].sample
            if (
                self._counts(place, task, num_known)
                and sample is not None
                and sample.reward is not None
                and version - min(segment.version for segment in sample.segments)
                <= math.ceil(Fraction(str(self.freshness.alpha)))
            ):
                first.setdefault(sample.replica, sample)
        members = list(first.values())[: self.groups.group_size]
        return len(members) == self.groups.group_size and bool(self._filters_that_refuse(members))

    def _filters_that_refuse(self, members: list[Sample]) -> set[str]:
        """By name, every filter that a group of these samples does not pass."""
        groups, size = self.groups, self.groups.group_size
        rewards = [Fraction(sample.reward) for sample in members if sample.reward is not None]
        num_passed = sum(reward >= groups.pass_reward for reward in rewards)
        num_tokens = sum(len(sample.token_ids) for sample in members)
        num_truncated = sum(sample.finish_reason is FinishReason.LENGTH for sample in members)
        every = Fraction(0), Fraction(10**9)
        hardest, easiest = map(Fraction, groups.pass_rate_bounds or every)
        shortest, longest = map(Fraction, groups.response_tokens_mean_bounds or every)
        most_truncated = Fraction(1 if groups.max_truncated_share is None else groups.max_truncated_share)
        refused = {
            "zero_signal": self.groups.filter_zero_signal and len(set(rewards)) == 1,
            "too_hard": num_passed < hardest * size,
            "too_easy": num_passed > easiest * size,
            "too_short": num_tokens < shortest * size,
            "too_long": num_tokens > longest * size,
            "truncated": num_truncated > most_truncated * size,
        }
        return {name for name, is_refused in refused.items() if is_refused}

    def _counts(self, place: Place, task: RolloutTask, num_known: int) -> bool:
        """Whether a finished sample had been read, and not judged, when the task was issued."""
        partition, offset = place
        judged = self.ledger.judged[partition].get(offset)
        return (
            self.samples[place].is_finished
            and offset < task.samples_positions[partition]
            and (judged is None or judged.entry >= num_known)
        )


def _issue_order(task: RolloutTask) -> tuple[int, int]:
    epoch, _, sequence = task.task_id.partition(".")
    return (int(epoch), int(sequence))
