"""A ledger that was cut off, or emptied: what points beyond its end is named, also without a head kept elsewhere."""

from __future__ import annotations

import shutil
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from support.audited_run import check, findings, places

from rollog.kernel.broker.ports import TopicPartition
from schemas import DeadLetter, Disposition, LedgerRecord, RolloutTask, Sample
from schemas.codec import SchemaError, decode, decode_as, encode

if TYPE_CHECKING:
    from pathlib import Path

    from support.altered_topics import RecordedTopics
    from support.audited_run import AuditedRun

    from consumers.audit.report import AuditReport
    from rollog.kernel.broker.ports import Record


def steps_of(run: AuditedRun) -> TopicPartition:
    return TopicPartition(run.topics.steps, 0)


def only(run: AuditedRun, recorded: RecordedTopics, *names: str) -> RecordedTopics:
    """The topics that are not named are empty, but for the ledger and its samples."""
    kept = {getattr(run.topics, name) for name in ("steps", "samples", *names)}
    for place in recorded.records:
        if place.topic not in kept:
            recorded = recorded.cut(place, 0)
    return recorded


def named(report: AuditReport) -> list[tuple[str, int, int]]:
    """The records that were found to point beyond the end; files have no place."""
    return [place for place in places(findings(report, "end")) if place is not None]


@pytest.mark.parametrize("num_records", range(1, 7))
def test_a_ledger_that_was_cut_is_found_off(run: AuditedRun, num_records: int) -> None:
    report = run.audit(run.recorded.cut(steps_of(run), run.steps[num_records].offset))

    found = findings(report, "end")
    assert found
    assert {each.name for each, _ in report.findings} == {"end"}


def test_each_notice_beyond_the_end_is_named(run: AuditedRun) -> None:
    cut = only(run, run.recorded.cut(steps_of(run), run.steps[2].offset), "weights")
    report = run.audit(cut)

    notices = run.recorded.all(run.topics.weights)[report.version + 1 :]
    assert named(report) == [(run.topics.weights, 0, notice.offset) for notice in notices]


def test_each_task_beyond_the_end_is_named(run: AuditedRun) -> None:
    end = run.steps[2].offset
    report = run.audit(only(run, run.recorded.cut(steps_of(run), end), "tasks"))

    later = {
        (record.topic, record.partition, record.offset)
        for record in run.recorded.all(run.topics.tasks)
        if isinstance(task := decode(record.value or b""), RolloutTask) and task.ledger_position > end
    }
    assert later
    assert set(named(report)) == later


def test_a_dead_letter_beyond_the_end_is_named(run: AuditedRun) -> None:
    (letter,) = run.recorded.all(run.topics.dead_letters)
    content = decode_as(DeadLetter, letter.value or b"")
    about = (content.partition, content.offset)
    number = next(
        number
        for number, record in enumerate(run.ledger)
        if any((verdict.partition, verdict.offset) == about for verdict in record.verdicts)
    )
    cut = run.recorded.cut(steps_of(run), run.steps[number].offset)
    report = run.audit(only(run, cut, "dead_letters"))

    assert named(report) == [(letter.topic, letter.partition, letter.offset)]


def test_a_file_far_beyond_the_end_is_named(run: AuditedRun, tmp_path: Path) -> None:
    """The one after the newest version may be on its way, or was left by a trainer that died."""
    weights = run.copied_weights(tmp_path)
    newest = max(weights.iterdir())
    shutil.copy(newest, weights / newest.name.replace("v000004", "v000005"))
    assert run.audit(weights=weights).is_clean
    name = newest.name.replace("v000004", "v000006")
    shutil.copy(newest, weights / name)

    (finding,) = findings(run.audit(weights=weights), "end")
    assert finding.record_id == name


@pytest.mark.parametrize("is_deleted", [True, False])
def test_an_emptied_ledger_with_samples_is_found_off(run: AuditedRun, is_deleted: bool) -> None:
    """Deleted up to its end, so that offsets go on, or made anew."""
    place = steps_of(run)
    emptied = (
        run.recorded.truncated(place, run.recorded.ends[place]) if is_deleted else run.recorded.cut(place, 0)
    )
    report = run.audit(only(run, emptied))

    samples = [record for record in run.recorded.all(run.topics.samples) if _is_sample(record)]
    assert named(report) == [(run.topics.samples, samples[0].partition, samples[0].offset)]
    assert any(f"{len(samples)} sample(s)" in found.message for found in findings(report, "end"))


def test_a_task_that_never_ended_is_named(run: AuditedRun) -> None:
    """The record in which it ended was taken away, and every verdict on it, before anybody kept a head."""
    verdict = run.verdict(Disposition.STALE)
    record = run.sample(verdict)

    def edit(entry: LedgerRecord) -> LedgerRecord:
        return replace(entry, verdicts=tuple(each for each in entry.verdicts if each != verdict))

    task_id = decode_as(Sample, record.value or b"").task_id
    report = run.audit(run.rechained(edit).without(record))

    (finding,) = findings(report, "end")
    assert finding.record_id == f"task {task_id}"


def test_what_a_task_of_somebody_else_says_of_the_ledger_proves_nothing(run: AuditedRun) -> None:
    place = TopicPartition(run.topics.tasks, 0)
    task = next(
        decoded
        for record in run.recorded.all(run.topics.tasks)
        if isinstance(decoded := decode(record.value or b""), RolloutTask)
    )
    strange = replace(task, task_id="9.9.9", ledger_position=1 << 40)
    again = replace(task, ledger_position=1 << 40)

    assert run.audit(run.recorded.with_more(place, encode(strange), encode(again))).is_clean


def test_what_comes_while_the_audit_reads_is_counted_apart(run: AuditedRun) -> None:
    steps = run.steps
    report = run.audit(run.recorded.growing(steps_of(run), steps[3].offset))

    assert report.is_clean, "\n".join(report.lines())
    assert check(report, "end").num_checked == len(steps) - 3


def _is_sample(record: Record) -> bool:
    try:
        decode_as(Sample, record.value or b"")
    except SchemaError:
        return False
    return True
