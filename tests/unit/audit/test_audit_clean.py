"""What an audit says of a run that nobody has touched: finished, live, truncated, or full of garbage."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from support.audited_run import check, findings, places

from consumers.audit.auditor import audit_run
from rollog.kernel.broker.ports import TopicPartition
from rollog.kernel.broker.topics import RunTopics
from rollog.kernel.errors import TopicMismatch
from schemas import Disposition, Genesis, LedgerKind, LedgerRecord

if TYPE_CHECKING:
    from support.audited_run import AuditedRun

    from rollog.kernel.broker.memory import MemoryBroker


def test_nothing_is_off_and_everything_is_counted(run: AuditedRun) -> None:
    report = run.audit()

    assert report.is_clean, "\n".join(report.lines())
    assert report.is_closed
    assert not report.missing
    verdicts = Counter(verdict.disposition for record in run.ledger for verdict in record.verdicts)
    assert {Disposition.TRAINED, Disposition.STALE, Disposition.LOST, Disposition.DEAD} <= verdicts.keys()
    assert report.samples.num_by_disposition == verdicts
    num_samples = len(run.recorded.all(run.topics.samples))
    assert report.samples.num_records == num_samples == verdicts.total()
    counts = {each.name: each.num_checked for each in report.checks}
    assert counts["chain"] == len(run.ledger)
    assert counts["I1"] == counts["digests"] == counts["verdicts"] == num_samples
    assert counts["I2"] == verdicts[Disposition.TRAINED]
    assert counts["I3"] >= counts["I2"]
    assert (counts["I4 files"], counts["I6"]) == (5, 4)
    assert counts["I5"] > 0
    assert counts["dead letters"] == verdicts[Disposition.DEAD]
    assert not any(each.num_unchecked for each in report.checks)


@pytest.mark.parametrize(
    ("versions", "said"),
    [
        ({}, "genesis does not say which processor trained the run"),
        (
            {"processor": "AuthenticAMD family 25"},
            "trained on AuthenticAMD family 25: a replay can be equal there",
        ),
        (
            {"processor": "any", "instructions pinned to": "avx2"},
            "pinned to avx2: a replay gives the same weights",
        ),
    ],
)
def test_the_report_says_where_a_replay_can_be_equal(
    run: AuditedRun, versions: dict[str, str], said: str
) -> None:
    def edit(record: LedgerRecord) -> LedgerRecord:
        if not isinstance(record.body, Genesis):
            return record
        return replace(record, body=replace(record.body, versions=record.body.versions | versions))

    notes = run.audit(run.rechained(edit)).notes
    assert any(said in note for note in notes)


def test_what_comes_after_the_close_is_counted_apart(run: AuditedRun) -> None:
    late = run.sample(run.verdict(Disposition.TRAINED)).value
    report = run.audit(run.recorded.with_more(TopicPartition(run.topics.samples, 1), late))

    assert report.is_clean
    assert report.samples.num_after_close == 1
    assert report.samples.num_records == len(run.recorded.all(run.topics.samples)) + 1


@pytest.mark.parametrize("num_records", range(1, 10))
def test_a_live_run_has_open_samples_and_nothing_off(run: AuditedRun, num_records: int) -> None:
    """All other topics are ahead of the ledger, as they are when its end is fetched first; read again it is whole."""
    steps = TopicPartition(run.topics.steps, 0)
    end = run.steps[num_records].offset if num_records < len(run.steps) else run.recorded.ends[steps]
    report = run.audit(run.recorded.growing(steps, end))

    assert report.is_clean, "\n".join(report.lines())
    assert check(report, "end").num_checked == len(run.ledger) - num_records
    num_judged = sum(len(record.verdicts) for record in run.ledger[:num_records])
    is_closed = run.ledger[num_records - 1].kind is LedgerKind.CLOSE
    assert report.is_closed is is_closed
    assert report.samples.num_open == len(run.recorded.all(run.topics.samples)) - num_judged


def test_a_run_that_has_not_begun_is_empty(memory_broker: MemoryBroker, run: AuditedRun) -> None:
    with memory_broker.admin() as admin, run.recorded.admin() as recorded:
        admin.create_topics(list(recorded.describe_topics([run.topics.steps, run.topics.samples]).values()))
    report = audit_run(memory_broker, run.topics)

    assert report.is_clean
    assert (report.version, report.head.sha256) == (-1, None)
    assert {missing.what for missing in report.missing} >= {f"topic {run.topics.weights}", "weights store"}


def test_a_run_without_topics_is_named(memory_broker: MemoryBroker) -> None:
    with pytest.raises(TopicMismatch, match=r"rollog\.none\.steps"):
        audit_run(memory_broker, RunTopics("rollog", "none"))


def test_truncated_samples_are_named_and_not_counted_as_checked(run: AuditedRun) -> None:
    place, begin = TopicPartition(run.topics.samples, 0), 6
    gone = [record for record in run.recorded.records[place] if record.offset < begin]
    report = run.audit(run.recorded.truncated(place, begin))

    assert report.is_clean, "\n".join(report.lines())
    assert check(report, "digests").num_unchecked == len(gone)
    assert check(report, "digests").num_checked == len(run.recorded.all(run.topics.samples)) - len(gone)
    told = [str(missing) for missing in report.missing]
    assert any(f"{place.topic}, partition 0, offsets 0 to {begin - 1}" in line for line in told)
    trained = [
        {verdict.sample_id for verdict in record.verdicts if verdict.disposition is Disposition.TRAINED}
        for record in run.ledger
        if record.kind is LedgerKind.STEP
        and any(
            verdict.partition == 0 and verdict.offset < begin and verdict.disposition is Disposition.TRAINED
            for verdict in record.verdicts
        )
    ]
    assert check(report, "I6").num_unchecked == len(trained) > 0
    assert any("cannot be done again" in line for line in told)


def test_a_truncated_ledger_is_checked_from_its_first_record_on(run: AuditedRun) -> None:
    place, begin = TopicPartition(run.topics.steps, 0), run.steps[4].offset
    report = run.audit(run.recorded.truncated(place, begin))

    assert report.is_clean, "\n".join(report.lines())
    assert check(report, "chain").num_checked == len(run.ledger) - 4
    assert report.samples.num_unknown == sum(len(record.verdicts) for record in run.ledger[:4])
    assert check(report, "I1").num_unchecked == report.samples.num_unknown
    assert any(f"offsets 0 to {begin - 1}" in str(missing) for missing in report.missing)


@pytest.mark.parametrize("name", ["weights", "dead_letters", "tasks", "evaluations"])
def test_other_truncated_topics_are_named(run: AuditedRun, name: str) -> None:
    topic = getattr(run.topics, name)
    place = TopicPartition(topic, 0)
    begin = max(1, run.recorded.ends[place])
    report = run.audit(run.recorded.truncated(place, begin))

    assert report.is_clean, "\n".join(report.lines())
    assert [missing.what for missing in report.missing] == [f"{topic}, partition 0, offsets 0 to {begin - 1}"]


garbage = (None, b"", b"\xc3\x01", b"\xc3\x01 no record", b"\x00" * 200, b"plain text")


@pytest.mark.parametrize(
    "name", ["samples", "weights", "evaluations", "workers", "dead_letters", "tasks", "control"]
)
def test_garbage_on_a_topic_does_not_disturb_the_rest(run: AuditedRun, name: str) -> None:
    """On samples it comes after the close; before it, it is judged dead, as the run itself shows."""
    topic = getattr(run.topics, name)
    records = run.recorded.all(topic)
    torn = [(record.value or b"")[:-3] for record in records[:2]]
    report = run.audit(run.recorded.with_more(TopicPartition(topic, 0), *garbage, *torn))

    assert report.is_clean, "\n".join(report.lines())


def test_garbage_on_the_ledger_is_named_and_the_rest_checked(run: AuditedRun) -> None:
    steps = TopicPartition(run.topics.steps, 0)
    recorded = run.recorded.with_more(steps, *garbage)
    report = run.audit(recorded)

    assert [place and place[2] for place in places(findings(report, "chain"))] == [
        record.offset for record in recorded.all(run.topics.steps)[-len(garbage) :]
    ]
    assert len(report.findings) == len(garbage)


@pytest.mark.parametrize("name", ["samples", "weights", "tasks", "steps", "evaluations", "dead_letters"])
def test_records_of_other_topics_are_survived(run: AuditedRun, name: str) -> None:
    strangers = [
        record.value
        for topic in (run.topics.samples, run.topics.weights, run.topics.tasks, run.topics.control)
        for record in run.recorded.all(topic)[:2]
    ]
    place = TopicPartition(getattr(run.topics, name), 0)
    report = run.audit(run.recorded.with_more(place, *strangers))

    assert list(report.lines())
