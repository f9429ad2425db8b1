"""A small run made by the real dispatcher, worker sessions and trainer, recorded to be audited with one change each.

It has everything an audit looks at: records judged trained, stale, lost and dead, lags up to the bound of a fractional
alpha, tasks issued again, low-water marks that wait.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import TYPE_CHECKING

import fsspec

from consumers.audit.auditor import audit_run
from rollog.kernel.broker.ports import TopicPartition
from rollog.kernel.broker.topics import RunTopics, run_topic_names
from rollog.kernel.weights import WeightsStore
from support.altered_topics import RecordedTopics
from support.simulated_plan import Plan
from support.simulated_run import SimulatedRun

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from consumers.audit.findings import Check, Finding
    from consumers.audit.report import AuditReport
    from rollog.kernel.broker.ports import Record
    from schemas import Disposition, LedgerRecord, Verdict


@dataclass(frozen=True)
class AuditedRun:
    """The copy of a run, its weights in a directory, and ways to change either."""

    topics: RunTopics
    recorded: RecordedTopics
    weights: Path

    def audit(
        self, recorded: RecordedTopics | None = None, *, weights: Path | None = None, head: str | None = None
    ) -> AuditReport:
        store = WeightsStore(str(weights or self.weights))
        return audit_run(recorded or self.recorded, self.topics, store, head=head, settles_within_seconds=0.0)

    def rechained(self, edit: Callable[[LedgerRecord], LedgerRecord | None]) -> RecordedTopics:
        return self.recorded.rechained(self.topics.steps, edit)

    def with_verdict(
        self, chosen: Verdict, *, by: RecordedTopics | None = None, **changes: object
    ) -> RecordedTopics:
        """One disposition differs."""

        def edit(record: LedgerRecord) -> LedgerRecord:
            verdicts = tuple(
                replace(verdict, **changes) if verdict == chosen else verdict  # type: ignore[arg-type]
                for verdict in record.verdicts
            )
            return replace(record, verdicts=verdicts)

        return (by or self.recorded).rechained(self.topics.steps, edit)

    @property
    def steps(self) -> list[Record]:
        """Records of the ledger."""
        return self.recorded.all(self.topics.steps)

    @property
    def ledger(self) -> list[LedgerRecord]:
        return self.recorded.ledger(self.topics.steps)

    @property
    def recorded_head(self) -> str:
        """The sha256 of the last ledger record."""
        return sha256(self.steps[-1].value or b"").hexdigest()

    def verdict(self, disposition: Disposition, which: int = 0) -> Verdict:
        """One disposition of a kind."""
        found = [
            verdict
            for record in self.ledger
            for verdict in record.verdicts
            if verdict.disposition is disposition
        ]
        return found[which]

    def sample(self, verdict: Verdict) -> Record:
        """The record that a disposition is about."""
        records = self.recorded.records[TopicPartition(self.topics.samples, verdict.partition)]
        return next(record for record in records if record.offset == verdict.offset)

    def copied_weights(self, directory: Path) -> Path:
        return shutil.copytree(self.weights, directory / "weights")


def record_run(directory: Path) -> AuditedRun:
    """Make the run and copy it."""
    with SimulatedRun(Plan(alpha=1.5, groups_per_batch=2, group_size=2, num_steps=4)) as run:
        run.send_garbage(0)
        _turn(run, 2)
        run.workers[0].finish(0, lambda _replica: None)
        _turn(run, 2)
        run.start_worker()
        _turn(run, 2)
        run.workers[0].finish(0, run.score)
        _turn(run, 1)
        run.kill_worker(0, arrives=True)
        run.now += 3.5
        _turn(run, 2)
        run.finish()
        recorded = RecordedTopics.copied(run.broker, run_topic_names(run.topics))
        weights = directory / "weights"
        fsspec.filesystem("memory").get(run.topics.run, str(weights), recursive=True)
        return AuditedRun(run.topics, recorded, weights)


def findings(report: AuditReport, name: str) -> list[Finding]:
    """What one check found."""
    return check(report, name).findings


def check(report: AuditReport, name: str) -> Check:
    return next(check for check in report.checks if check.name == name)


def places(found: list[Finding]) -> list[tuple[str, int, int] | None]:
    """Where findings are."""
    return [
        None
        if finding.place is None
        else (finding.place.topic, finding.place.partition, finding.place.offset)
        for finding in found
    ]


def _turn(run: SimulatedRun, count: int) -> None:
    for _ in range(count):
        run.now += 0.25
        for worker in list(run.workers):
            worker.read()
            worker.load()
        for number in range(len(run.workers)):
            run.beat(number)
        run.turn_dispatcher()
        run.turn_trainer()
