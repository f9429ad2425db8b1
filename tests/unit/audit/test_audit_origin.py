"""What was trained must have been ordered: an invented sample is named even where ledger and step fit it."""

from __future__ import annotations

from dataclasses import replace
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import pytest
from support.audited_run import check, findings, places

from rollog.kernel.broker.ports import TopicPartition
from schemas import Disposition, Grant, LedgerRecord, RolloutTask, Sample
from schemas.codec import decode, decode_as, encode

if TYPE_CHECKING:
    from support.altered_topics import RecordedTopics
    from support.audited_run import AuditedRun


def with_trained(run: AuditedRun, **changes: Any) -> tuple[RecordedTopics, Any]:
    """One trained sample was another one from the start: its record, its digest and the chain say so."""
    verdict = run.verdict(Disposition.TRAINED)
    record = run.sample(verdict)
    value = encode(replace(decode_as(Sample, record.value or b""), **changes))
    said = {name: changes[name] for name in ("group_id", "replica", "sample_id") if name in changes}
    digest = sha256(value).digest()[:16]
    altered = run.with_verdict(verdict, by=run.recorded.with_value(record, value), digest=digest, **said)
    return altered, (run.topics.samples, verdict.partition, verdict.offset)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"task_id": "1.999"}, "no task ordered it"),
        ({"seed": 12345}, "seed 12345"),
        ({"grant_id": "nobody's"}, "grant nobody's"),
        ({"worker_id": "an-intruder"}, "worker an-intruder"),
        ({"attempt": 7}, "attempt 7"),
    ],
)
def test_a_trained_sample_that_nobody_ordered_is_named(
    run: AuditedRun, changes: dict[str, Any], said: str
) -> None:
    altered, place = with_trained(run, **changes)

    (finding,) = findings(run.audit(altered), "origin")
    assert places([finding]) == [place]
    assert said in f"{finding.message} {finding.found}"


def test_an_invented_group_is_named_as_one_that_was_never_issued(run: AuditedRun) -> None:
    """All samples of a step are another group's, whose number no task has."""
    first = run.verdict(Disposition.TRAINED)
    verdicts = [
        verdict
        for record in run.ledger
        for verdict in record.verdicts
        if verdict.disposition is Disposition.TRAINED and verdict.group_id == first.group_id
    ]
    invented = first.group_id + 1000
    recorded = run.recorded
    digests = {}
    for verdict in verdicts:
        record = run.sample(verdict)
        sample = decode_as(Sample, record.value or b"")
        name = f"g{invented}.r{sample.replica}.a{sample.attempt}"
        value = encode(
            replace(sample, group_id=invented, sample_id=name, task_id=f"1.{900 + sample.replica}")
        )
        recorded = recorded.with_value(record, value)
        digests[verdict] = (sha256(value).digest()[:16], name)

    def edit(record: LedgerRecord) -> LedgerRecord:
        edited = tuple(
            replace(each, group_id=invented, digest=digests[each][0], sample_id=digests[each][1])
            if each in digests
            else each
            for each in record.verdicts
        )
        closed = tuple(
            replace(each, group_id=invented) if each.group_id == first.group_id else each
            for each in record.closed_groups
        )
        return replace(record, verdicts=edited, closed_groups=closed)

    report = run.audit(recorded.rechained(run.topics.steps, edit))

    found = findings(report, "origin")
    assert len(found) == len(verdicts) == 2
    assert all(f"group {invented} was never issued" in finding.message for finding in found)


def test_a_task_that_no_dispatcher_gave_is_no_origin(run: AuditedRun) -> None:
    altered, place = with_trained(run, task_id="1.999", seed=77)
    order = next(
        task
        for record in run.recorded.all(run.topics.tasks)
        if isinstance(task := decode(record.value or b""), RolloutTask)
    )
    forged = encode(replace(order, task_id="1.999", seed=77))
    report = run.audit(altered.with_more(TopicPartition(run.topics.tasks, 0), forged))

    assert places(findings(report, "origin")) == [place]


def test_a_grant_that_was_never_given_is_no_origin(run: AuditedRun) -> None:
    recorded = run.recorded
    for record in recorded.all(run.topics.control):
        if isinstance(decode(record.value or b""), Grant):
            recorded = recorded.without(record)
    report = run.audit(recorded)

    found = findings(report, "origin")
    assert len(found) == check(report, "origin").num_checked > 0
    assert all(finding.found == "none" for finding in found)


@pytest.mark.parametrize("name", ["tasks", "control"])
def test_without_tasks_or_grants_origins_are_not_checked(run: AuditedRun, name: str) -> None:
    recorded = run.recorded
    topic = getattr(run.topics, name)
    for place in list(recorded.records):
        if place.topic == topic and recorded.ends[place]:
            recorded = recorded.truncated(place, recorded.ends[place])
    report = run.audit(recorded)

    assert report.is_clean, "\n".join(report.lines())
    origin = check(report, "origin")
    assert origin.num_unchecked == origin.num_checked > 0
