"""An independent reader of a run's topics that checks the invariants record by record.

It shares no rule with the product: freshness, quota and admission are worked out anew from the definitions.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from fractions import Fraction
from hashlib import sha256
from typing import TYPE_CHECKING

from rollog.broker.ports import TopicPartition
from schemas import (
    Cancel,
    CancelReason,
    Close,
    Disposition,
    Fence,
    FinishReason,
    Genesis,
    LedgerKind,
    LedgerRecord,
    RolloutTask,
    Sample,
    Status,
    Step,
    Verdict,
)
from schemas.codec import SchemaError, decode, decode_as

if TYPE_CHECKING:
    from rollog.broker.ports import Broker, Record
    from rollog.broker.topics import RunTopics
    from rollog.config import FreshnessConfig, GroupConfig

Place = tuple[int, int]


@dataclass(slots=True)
class LedgerView:
    """What an auditor remembers of one ledger record: where it stands and what it did."""

    offset: int
    version: int
    judged: set[Place]
    closed: set[int]


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
    samples: dict[Place, tuple[bytes, Sample | None]] = field(default_factory=dict)
    tasks: dict[str, RolloutTask] = field(default_factory=dict)
    ledger: list[LedgerView] = field(default_factory=list)
    verdicts: dict[Place, Disposition] = field(default_factory=dict)
    trained: set[tuple[int, int]] = field(default_factory=set)
    outcomes: dict[int, Disposition] = field(default_factory=dict)
    weights: dict[int, str] = field(default_factory=dict)
    end_offsets: tuple[int, ...] | None = None
    close_reason: str = ""
    filtered_as: Counter[str] = field(default_factory=Counter)
    cancelled: dict[str, CancelReason] = field(default_factory=dict)
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
        self._consumer = self.broker.consumer(client_id="auditor")
        self._consumer.assign(
            {TopicPartition(topic, number): 0 for topic, count in counts.items() for number in range(count)}
        )

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
        """I9 and I5 at every task issued since the last call; all tasks issued before must have been looked at."""
        for task in sorted(self._unchecked, key=_issue_order):
            self._check_issue(task)
        self._unchecked.clear()

    def conclude(self) -> None:
        """The run is closed: every record up to the end offsets has its one disposition (I1)."""
        self.look()
        self.check_issues()
        assert self.end_offsets is not None, "the ledger is not closed"
        expected = {place for place in self.samples if place[1] < self.end_offsets[place[0]]}
        assert self.verdicts.keys() == expected, (
            "I1: records without disposition, or dispositions without record"
        )

    def _task(self, record: Record) -> None:
        decoded = decode(record.value or b"")
        if isinstance(decoded, Fence):
            self._fences[record.partition] = max(self._fences[record.partition], decoded.epoch)
        if isinstance(decoded, Cancel):
            self.cancelled[decoded.task_id] = decoded.reason
        if not isinstance(decoded, RolloutTask) or decoded.epoch < self._fences[record.partition]:
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
        place = (record.partition, record.offset)
        try:
            sample: Sample | None = decode_as(Sample, record.value or b"")
        except SchemaError:
            sample = None
        self.samples[place] = (sha256(record.value or b"").digest()[:16], sample)
        if sample is None:
            return
        self._members[sample.group_id].append(place)
        if sample.status is not Status.LOST:
            assert sample.task_id in self.tasks, f"a worker made {sample.sample_id} for a void task"

    def _ledger_record(self, record: Record) -> None:
        entry = decode_as(LedgerRecord, record.value or b"")
        assert self.end_offsets is None, "a record after close"
        before = self.ledger[-1].version if self.ledger else -1
        makes_version = entry.kind in (LedgerKind.GENESIS, LedgerKind.STEP)
        assert entry.version == before + makes_version
        if entry.kind is LedgerKind.STEP:
            self._check_batch(entry, before)
        self._check_filtered(entry)
        for verdict in entry.verdicts:
            place = (verdict.partition, verdict.offset)
            assert place in self.samples, f"I1: a disposition of {place}, where there is no record"
            assert place not in self.verdicts, f"I1: a second disposition of {place}"
            assert verdict.digest == self.samples[place][0]
            self.verdicts[place] = verdict.disposition
            self._check_after_closing(verdict, self.samples[place][1])
            if verdict.disposition is Disposition.TRAINED:
                assert entry.kind is LedgerKind.STEP, "trained outside of a step"
                rollout = (verdict.group_id, verdict.replica)
                assert rollout not in self.trained, f"I2: {rollout} is trained twice"
                self.trained.add(rollout)
        for group in entry.closed_groups:
            assert group.group_id not in self.outcomes, f"group {group.group_id} is closed twice"
            self.outcomes[group.group_id] = group.outcome
        if isinstance(entry.body, Genesis | Step):
            self.weights[entry.version] = entry.body.weights_sha256
        if isinstance(entry.body, Close):
            self.end_offsets, self.close_reason = entry.body.end_offsets, entry.body.reason
        self.ledger.append(
            LedgerView(
                offset=record.offset,
                version=entry.version,
                judged={(verdict.partition, verdict.offset) for verdict in entry.verdicts},
                closed={group.group_id for group in entry.closed_groups},
            )
        )

    def _check_filtered(self, entry: LedgerRecord) -> None:
        """Only whole groups are filtered, one sample of each of G replicas, and for a reason that holds; no other."""
        verdicts: defaultdict[int, list[Verdict]] = defaultdict(list)
        for verdict in entry.verdicts:
            if verdict.disposition in (Disposition.FILTERED, Disposition.TRAINED):
                verdicts[verdict.group_id].append(verdict)
        for group, found in verdicts.items():
            replicas = {verdict.replica for verdict in found}
            assert len(found) == len(replicas) == self.groups.group_size, f"group {group} judged by {found}"
            samples = [self.samples[(verdict.partition, verdict.offset)][1] for verdict in found]
            refused_by = self._filters_that_refuse([sample for sample in samples if sample is not None])
            reasons = {verdict.reason for verdict in found if verdict.disposition is Disposition.FILTERED}
            assert reasons <= refused_by, f"group {group} is filtered as {reasons}, refused by {refused_by}"
            assert bool(reasons) == bool(refused_by), f"group {group} is trained, refused by {refused_by}"
            self.filtered_as.update(reasons)

    def _check_after_closing(self, verdict: Verdict, sample: Sample | None) -> None:
        """What a finished sample becomes whose group an earlier ledger record closed."""
        if verdict.group_id not in self.outcomes or sample is None or sample.status is not Status.FINISHED:
            return
        if verdict.disposition is Disposition.DEAD:
            return
        is_trained = (verdict.group_id, verdict.replica) in self.trained
        expected = Disposition.DUPLICATE if is_trained else Disposition.REDUNDANT
        assert verdict.disposition is expected, (
            f"{verdict.sample_id} of a closed group is {verdict.disposition}"
        )

    def _check_batch(self, entry: LedgerRecord, version: int) -> None:
        """I3 and the form of a batch: whole groups of fresh samples, at most the quota of the largest lag."""
        lags: defaultdict[int, list[int]] = defaultdict(list)
        replicas: defaultdict[int, set[int]] = defaultdict(set)
        for verdict in entry.verdicts:
            if verdict.disposition is not Disposition.TRAINED:
                continue
            sample = self.samples[(verdict.partition, verdict.offset)][1]
            assert sample is not None
            assert sample.status is Status.FINISHED
            assert (sample.group_id, sample.replica) == (verdict.group_id, verdict.replica)
            for segment in sample.segments:
                assert self.weights[segment.version].startswith(segment.weights_digest), "I4: unknown weights"
            lags[sample.group_id].append(version - min(segment.version for segment in sample.segments))
            replicas[sample.group_id].add(sample.replica)
        assert 0 < len(lags) <= self.groups.groups_per_batch
        assert all(len(found) == self.groups.group_size for found in replicas.values())
        alpha = Fraction(str(self.freshness.alpha))
        bound = math.ceil(alpha)
        oldest = [max(found) for found in lags.values()]
        assert max(oldest) <= bound, f"I3: lag {max(oldest)} with alpha {alpha}"
        if alpha != bound:
            quota = math.floor((alpha - math.floor(alpha)) * self.groups.groups_per_batch)
            assert oldest.count(bound) <= quota, (
                f"I3: {oldest.count(bound)} groups of lag {bound}, quota {quota}"
            )

    def _check_issue(self, task: RolloutTask) -> None:
        known = [entry for entry in self.ledger if entry.offset < task.ledger_position]
        assert known[-1].version == task.issued_version
        judged = set().union(*(entry.judged for entry in known))
        group = task.group_id
        earlier = [found for found in self.tasks.values() if _issue_order(found) < _issue_order(task)]
        if task.attempt > 0:
            waiting = [
                self.samples[place][1] for place in self._members[group] if self._counts(place, task, judged)
            ]
            assert not any(found is not None and found.replica == task.replica for found in waiting), (
                f"I5: {group}.{task.replica} is issued again although a finished rollout waits for its verdict"
            )
        if any(found.group_id == group for found in earlier):
            return
        closed = set().union(*(entry.closed for entry in known))
        open_groups = {found.group_id for found in earlier} - closed
        bound = self._admission_bound(task, open_groups, judged)
        assert len(open_groups) < bound, (
            f"I9: group {group} is issued beside {sorted(open_groups)}, at most {bound} may be open"
        )

    def _admission_bound(self, task: RolloutTask, open_groups: set[int], judged: set[Place]) -> int:
        batch = self.groups.groups_per_batch
        needed = (self.num_steps - task.issued_version) * batch
        if needed <= 0:
            return 0
        window = math.floor((1 + Fraction(str(self.freshness.alpha))) * batch)
        num_filtered = sum(self._will_be_filtered(group, task, judged) for group in open_groups)
        return min(window, needed) + self.groups.redundant_groups + num_filtered

    def _will_be_filtered(self, group: int, task: RolloutTask, judged: set[Place]) -> bool:
        first: dict[int, Sample] = {}
        for place in sorted(self._members[group]):
            sample = self.samples[place][1]
            if self._counts(place, task, judged) and sample is not None and sample.reward is not None:
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
            "zero_signal": len(set(rewards)) == 1,
            "too_hard": num_passed < hardest * size,
            "too_easy": num_passed > easiest * size,
            "too_short": num_tokens < shortest * size,
            "too_long": num_tokens > longest * size,
            "truncated": num_truncated > most_truncated * size,
        }
        return {name for name, is_refused in refused.items() if is_refused}

    def _counts(self, place: Place, task: RolloutTask, judged: set[Place]) -> bool:
        """Whether a finished sample had been read, and not judged, when the task was issued."""
        partition, offset = place
        sample = self.samples[place][1]
        return (
            sample is not None
            and sample.status is Status.FINISHED
            and offset < task.samples_positions[partition]
            and place not in judged
        )


def _issue_order(task: RolloutTask) -> tuple[int, int]:
    epoch, _, sequence = task.task_id.partition(".")
    return (int(epoch), int(sequence))
