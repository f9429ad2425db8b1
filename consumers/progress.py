"""How a run is going, for people: folded from ledger, evaluations and heartbeats.

Consumes `steps`, `evaluations` and `workers`, and asks for the length of `samples` without reading it. Produces
nothing. A reader that starts late, or again, sees the same.
"""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from consumers.evaluation import EvaluationTally
from consumers.standing import Listener
from rollog.kernel.broker.ports import TopicPartition
from rollog.kernel.broker.reading import drain
from rollog.kernel.errors import TopicMismatch
from rollog.kernel.lifecycle import Component
from rollog.rules.ledger_chain import LedgerChain
from rollog.rules.ledger_state import LedgerState
from schemas import (
    Close,
    Disposition,
    Genesis,
    RoleStatus,
    RunRole,
    Sample,
    Step,
    StepTimings,
    WorkerState,
    WorkerStatus,
)
from schemas.codec import SchemaError, decode, decode_as

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from consumers.evaluation import EvaluationScore
    from rollog.kernel.broker.ports import Broker, Record
    from rollog.kernel.broker.topics import RunTopics
    from schemas import LedgerRecord

_polls_at_once = 50
_rate_window_seconds = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgressView:
    """One look at a run. `version` is -1 before the ledger begins."""

    version: int
    alpha: float
    reward_history: tuple[float, ...]
    lags: dict[int, int]
    dispositions: dict[str, int]
    reasons: dict[str, int]
    samples_produced: int
    tokens_generated: int
    tokens_per_second: float
    tokens_trained: int
    held_out: dict[tuple[str, int], EvaluationScore]
    workers: tuple[WorkerStatus, ...]
    engines: tuple[str, ...]
    versions: dict[str, str]
    step_timings: tuple[StepTimings, ...]
    is_closed: bool
    close_reason: str
    ledger_head: str
    alpha_history: tuple[float, ...] = ()
    """The alpha in force at each step."""
    changed_settings: dict[str, object] = field(default_factory=dict)
    """Settings changed on resume, by dotted key."""
    wall_seconds: float
    """From genesis to the newest ledger record, which is the close once there is one."""
    generating_seconds: float
    """From the first trace of a rollout to the newest ledger record."""
    groups: dict[str, int] = field(default_factory=dict)
    """Closed groups by outcome."""
    failures: dict[str, int] = field(default_factory=dict)
    """Failed rollouts by what they failed with, the most frequent first; text of records is in it."""
    roles: tuple[RoleStatus, ...] = ()
    """Dispatcher and trainer, as far as they are heard; text of records is in it."""
    standing_still: str = ""
    """What is waited for, where the run stands still or a role is not heard any more; text of records is in it."""

    @property
    def reward_mean(self) -> float | None:
        """Mean reward of the newest step."""
        return self.reward_history[-1] if self.reward_history else None

    @property
    def lag_max(self) -> int:
        """Largest lag of anything trained so far."""
        return max((lag for lag, count in self.lags.items() if count), default=0)

    @property
    def num_open_tasks(self) -> int:
        """Tasks that workers hold now."""
        return sum(len(worker.open_tasks) for worker in self.workers)

    def accuracy(self, evaluation: str, version: int) -> float | None:
        """Mean held-out reward of one evaluation of one version, as far as it is known."""
        score = self.held_out.get((evaluation, version))
        return None if score is None else score.mean_reward

    def newest_evaluation(self, evaluation: str) -> tuple[int, EvaluationScore] | None:
        """Version and score of the newest evaluation of that name."""
        versions = [version for name, version in self.held_out if name == evaluation]
        if not versions:
            return None
        return max(versions), self.held_out[(evaluation, max(versions))]


@dataclass(slots=True)
class RunTimes:
    """When a run began and how far it is, by the broker's append times alone."""

    genesis_ms: int | None = None
    rollout_ms: int | None = None
    newest_ms: int = 0

    def ledger_record(self, record: LedgerRecord, at_ms: int) -> None:
        """Take in when a ledger record was appended."""
        if isinstance(record.body, Genesis):
            self.genesis_ms = at_ms
        if record.verdicts:
            self.rollout(at_ms)
        self.newest_ms = max(self.newest_ms, at_ms)

    def rollout(self, at_ms: int) -> None:
        """Take in that there had been a rollout by then. The topics are read side by side, so any order is possible."""
        self.rollout_ms = at_ms if self.rollout_ms is None else min(self.rollout_ms, at_ms)

    @property
    def wall_seconds(self) -> float:
        """Since genesis."""
        return self._since(self.genesis_ms)

    @property
    def generating_seconds(self) -> float:
        """Since the first trace of a rollout."""
        return self._since(self.rollout_ms)

    def _since(self, start_ms: int | None) -> float:
        return 0.0 if start_ms is None else max(0, self.newest_ms - start_ms) / 1000


@dataclass(slots=True)
class ProgressFold:
    """What the records seen so far amount to."""

    ledger: LedgerState = field(default_factory=LedgerState)
    evaluations: EvaluationTally = field(default_factory=EvaluationTally)
    rewards: list[float] = field(default_factory=list)
    timings: list[StepTimings] = field(default_factory=list)
    alphas: list[float] = field(default_factory=list)
    lags: Counter[int] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    tokens_trained: int = 0
    close: Close | None = None
    versions: dict[str, str] = field(default_factory=dict)
    workers: dict[str, WorkerStatus] = field(default_factory=dict)
    engines: set[str] = field(default_factory=set)
    tokens_by_worker: dict[str, int] = field(default_factory=dict)
    failures_by_worker: dict[str, dict[str, int]] = field(default_factory=dict)
    times: RunTimes = field(default_factory=RunTimes)
    listener: Listener = field(default_factory=lambda: Listener(begun_at=0.0))

    def add_ledger_record(self, record: LedgerRecord, digest: bytes, at_ms: int) -> None:
        """Take in one record of `steps` that was appended then."""
        self.ledger.apply(record, digest)
        self.times.ledger_record(record, at_ms)
        self.reasons.update(
            f"{verdict.disposition}: {verdict.reason}"
            for verdict in record.verdicts
            if verdict.reason and verdict.disposition is not Disposition.TRAINED
        )
        match record.body:
            case Genesis() as genesis:
                self.versions = dict(genesis.versions)
            case Step() as step:
                self.rewards.append(step.reward_mean)
                self.timings.append(step.timings)
                self.alphas.append(step.alpha)
                self.tokens_trained += step.num_tokens
                self.lags.update({int(lag): count for lag, count in step.lags.items()})
            case Close() as close:
                self.close = close

    def add_evaluation(self, sample: Sample, at_ms: int) -> None:
        """Take in one record of `evaluations` that was appended then."""
        self.evaluations.add(sample)
        self.times.rollout(at_ms)

    def add_worker(self, worker_id: str, status: WorkerStatus | None, at_ms: int) -> None:
        """Take in one heartbeat, or a worker's tombstone, that was appended then."""
        if status is None or status.state is WorkerState.LEAVING:
            self.workers.pop(worker_id, None)
        else:
            self.workers[worker_id] = status
        if status is not None:
            if status.num_tokens:
                self.times.rollout(at_ms)
            known = self.tokens_by_worker.get(worker_id, 0)
            self.tokens_by_worker[worker_id] = max(known, status.num_tokens)
            if status.failures:
                self.failures_by_worker[worker_id] = status.failures
            self.engines |= {status.engine} - {""}

    @property
    def tokens_generated(self) -> int:
        """Response tokens of all workers, by their heartbeats."""
        return sum(self.tokens_by_worker.values())

    @property
    def failures(self) -> dict[str, int]:
        """Failed rollouts of all workers by what they failed with, the most frequent first."""
        total: Counter[str] = Counter()
        for failures in self.failures_by_worker.values():
            total.update(failures)
        return dict(total.most_common())

    def view(self, *, samples_produced: int, tokens_per_second: float, now: float = 0.0) -> ProgressView:
        """What is known `now`, by the clock of the listener."""
        counts = self.ledger.num_by_disposition
        return ProgressView(
            version=self.ledger.version,
            alpha=self.ledger.alpha,
            reward_history=tuple(self.rewards),
            lags=dict(self.lags),
            dispositions={
                disposition.value: counts[disposition]
                for disposition in Disposition
                if counts.get(disposition)
            },
            reasons=dict(self.reasons),
            samples_produced=samples_produced,
            tokens_generated=self.tokens_generated,
            tokens_per_second=tokens_per_second,
            tokens_trained=self.tokens_trained,
            held_out=self.evaluations.scores(),
            workers=tuple(self.workers[name] for name in sorted(self.workers)),
            engines=tuple(sorted(self.engines)),
            versions=dict(self.versions),
            step_timings=tuple(self.timings),
            alpha_history=tuple(self.alphas),
            changed_settings=self.ledger.changed_settings(),
            is_closed=self.ledger.is_closed,
            close_reason=self.close.reason if self.close else "",
            ledger_head=self.ledger.head.hex(),
            wall_seconds=self.times.wall_seconds,
            generating_seconds=self.times.generating_seconds,
            groups={outcome.value: num for outcome, num in self.ledger.closed_groups.num_by_outcome.items()},
            failures=self.failures,
            roles=self.listener.present(now),
            standing_still=""
            if self.ledger.is_closed
            else self.listener.sentence(
                self.ledger.version,
                now,
                has_worker=bool(self.workers),
                starting=next((worker.phase for worker in self.workers.values() if worker.phase), ""),
            ),
        )


class RunProgress(Component):
    """Follows one run, whose held-out games have `num_seats`; every `poll` is a turn.

    Raises TopicMismatch when its topics do not exist.
    """

    def __init__(
        self,
        broker: Broker,
        topics: RunTopics,
        clock: Callable[[], float] = time.monotonic,
        log_here: Callable[[RunRole], Path | None] = lambda _: None,
        *,
        num_seats: int = 1,
    ) -> None:
        self._topics = topics
        self._clock = clock
        self._fold = ProgressFold(
            evaluations=EvaluationTally(num_seats), listener=Listener(begun_at=clock(), log_here=log_here)
        )
        self._chain = LedgerChain()
        self._tokens: list[tuple[float, int]] = []
        self.newest_record_ms = 0
        """When the newest record that was read was appended, in milliseconds since 1970."""
        partitions = _partitions(broker, topics)
        self._samples = [TopicPartition(topics.samples, partition) for partition in range(partitions)]
        self._consumer = broker.consumer(client_id="progress")
        followed = [TopicPartition(topics.steps, 0), TopicPartition(topics.workers, 0)]
        followed += [TopicPartition(topics.evaluations, partition) for partition in range(partitions)]
        self._followed = followed
        self._history = self._consumer.end_offsets(followed)
        self._consumer.assign(self._consumer.beginning_offsets(followed))

    def close(self) -> None:
        """Close the consumer. Idempotent."""
        self._consumer.close()

    def poll(self, timeout_seconds: float = 0.0) -> ProgressView:
        """Take in what has arrived and say how the run is going. Raises LedgerError for a broken chain."""
        for _ in range(_polls_at_once):
            records = self._consumer.poll(timeout_seconds)
            for record in records:
                self._take(record)
            if not records:
                break
        return self._view()

    def read_to_end(self, stalls_after_seconds: float) -> ProgressView:
        """Take in everything that is stored now. Raises BrokerTimeout when reading stalls for so long."""
        ends = self._consumer.end_offsets(self._followed)
        for record in drain(self._consumer, ends, stalls_after_seconds=stalls_after_seconds):
            self._take(record)
        return self._view()

    def _take(self, record: Record) -> None:
        self.newest_record_ms = max(self.newest_record_ms, record.timestamp_ms)
        if record.topic == self._topics.steps:
            self._take_ledger(record)
        elif record.topic == self._topics.workers:
            self._take_heartbeat(record)
        elif (sample := _sample(record.value or b"")) is not None:
            self._fold.add_evaluation(sample, record.timestamp_ms)

    def _take_ledger(self, record: Record) -> None:
        found = self._chain.take(record)
        if found is not None:
            decoded, digest = found
            self._fold.listener.on_ledger(decoded, record.timestamp_ms, self._clock())
            self._fold.add_ledger_record(decoded, digest, record.timestamp_ms)

    def _take_heartbeat(self, record: Record) -> None:
        name = (record.key or b"").decode(errors="replace")
        status = None if record.value is None else _heartbeat(record.value)
        if isinstance(status, RoleStatus):
            self._fold.listener.on_role(status, self._clock())
        elif record.value is None and name in set(RunRole):
            self._fold.listener.on_leave(RunRole(name))
        elif record.value is None or status is not None:
            if status is not None:
                self._fold.listener.on_worker(self._clock())
            self._fold.add_worker(name, status, record.timestamp_ms)

    def _view(self) -> ProgressView:
        return self._fold.view(
            samples_produced=self._samples_produced(),
            tokens_per_second=self._tokens_per_second(),
            now=self._clock(),
        )

    def _samples_produced(self) -> int:
        if self._fold.close is not None:
            return sum(self._fold.close.end_offsets)
        return sum(self._consumer.end_offsets(self._samples).values())

    def _tokens_per_second(self) -> float:
        """Of the last seconds; 0 while what happened before this reader began is being read."""
        if self._is_in_history():
            return 0.0
        now = time.monotonic()
        self._tokens.append((now, self._fold.tokens_generated))
        while len(self._tokens) > 1 and self._tokens[1][0] < now - _rate_window_seconds:
            del self._tokens[0]
        (start, before), (end, after) = self._tokens[0], self._tokens[-1]
        return (after - before) / (end - start) if end > start else 0.0

    def _is_in_history(self) -> bool:
        self._history = {
            partition: end
            for partition, end in self._history.items()
            if self._consumer.position(partition) < end
        }
        return bool(self._history)


def _partitions(broker: Broker, topics: RunTopics) -> int:
    with broker.admin() as admin:
        found = admin.describe_topics([topics.samples])
    if topics.samples not in found:
        raise TopicMismatch(
            f"topic {topics.samples} does not exist at {broker.address}: check the run's name and the address; a new "
            "run is created with `rollog topics create`, a deleted topic cannot be brought back"
        )
    return found[topics.samples].num_partitions


def _sample(value: bytes) -> Sample | None:
    try:
        return decode_as(Sample, value)
    except SchemaError:
        return None


def _heartbeat(value: bytes) -> WorkerStatus | RoleStatus | None:
    try:
        decoded = decode(value)
    except SchemaError:
        return None
    return decoded if isinstance(decoded, WorkerStatus | RoleStatus) else None
