"""A ledger whose chain is whole, but which says what must not be: each invariant has records that break it."""

from __future__ import annotations

from dataclasses import replace
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import pytest
from support.audited_run import check, findings, places

from consumers.audit.issues import sampling_seed
from rollog.kernel.broker.ports import TopicPartition
from schemas import Disposition, Fence, LedgerKind, RolloutTask, Sample, Status, Step
from schemas.codec import decode, decode_as, encode

if TYPE_CHECKING:
    from support.altered_topics import RecordedTopics
    from support.audited_run import AuditedRun

    from schemas import LedgerRecord, Verdict


def place_of(run: AuditedRun, verdict: Verdict) -> tuple[str, int, int]:
    return (run.topics.samples, verdict.partition, verdict.offset)


def with_steps(run: AuditedRun, version: int, **changes: Any) -> RecordedTopics:
    """The body of one step differs."""

    def edit(record: LedgerRecord) -> LedgerRecord:
        if isinstance(record.body, Step) and record.version == version:
            return replace(record, body=replace(record.body, **changes))
        return record

    return run.rechained(edit)


def with_alpha(run: AuditedRun, alpha: float) -> RecordedTopics:
    """The whole run was made under another alpha."""

    def edit(record: LedgerRecord) -> LedgerRecord:
        body = replace(record.body, alpha=alpha) if isinstance(record.body, Step) else record.body
        return replace(record, alpha=alpha, body=body)

    return run.rechained(edit)


def with_verdicts(run: AuditedRun, kind: LedgerKind, *more: Verdict) -> RecordedTopics:
    """The last record of a kind has further verdicts."""
    last = [record for record in run.ledger if record.kind is kind][-1]

    def edit(record: LedgerRecord) -> LedgerRecord:
        same = record.sequence == last.sequence
        return replace(record, verdicts=(*record.verdicts, *more)) if same else record

    return run.rechained(edit)


def test_i1_a_record_without_disposition(run: AuditedRun) -> None:
    verdict = run.verdict(Disposition.STALE)

    def edit(record: LedgerRecord) -> LedgerRecord:
        return replace(record, verdicts=tuple(each for each in record.verdicts if each != verdict))

    report = run.audit(run.rechained(edit))

    found = findings(report, "I1")
    assert places(found) == [place_of(run, verdict)]
    assert report.samples.num_undisposed == 1
    assert report.samples.num_records == len(run.recorded.all(run.topics.samples))


def test_i1_a_second_disposition(run: AuditedRun) -> None:
    verdict = run.verdict(Disposition.LOST)
    again = replace(verdict, disposition=Disposition.CANCELLED)

    (finding,) = findings(run.audit(with_verdicts(run, LedgerKind.CLOSE, again)), "I1")

    assert places([finding]) == [place_of(run, verdict)]
    assert finding.expected.startswith("lost, by record")
    assert finding.found == "cancelled"


def test_i1_a_disposition_of_nothing(run: AuditedRun) -> None:
    verdict = replace(run.verdict(Disposition.LOST), offset=1 << 40)
    partition = replace(run.verdict(Disposition.LOST), partition=99)

    found = findings(run.audit(with_verdicts(run, LedgerKind.CLOSE, verdict, partition)), "I1")

    assert set(places(found)) == {place_of(run, verdict), place_of(run, partition)}


def test_i1_a_low_water_mark_ahead_of_what_it_claims(run: AuditedRun) -> None:
    """On a live run, too, nothing below the mark may be open."""
    verdict = run.verdict(Disposition.STALE)

    def edit(record: LedgerRecord) -> LedgerRecord:
        marks = list(record.low_water_marks)
        marks[verdict.partition] = max(marks[verdict.partition], verdict.offset + 1)
        return replace(record, low_water_marks=tuple(marks))

    closed = findings(run.audit(run.rechained(edit)), "I1")
    assert place_of(run, verdict) in places(closed)

    steps = TopicPartition(run.topics.steps, 0)
    live = run.rechained(edit).cut(steps, run.steps[4].offset)
    assert place_of(run, verdict) in places(findings(run.audit(live), "I1"))


def test_i1_a_low_water_mark_that_goes_back(run: AuditedRun) -> None:
    def edit(record: LedgerRecord) -> LedgerRecord:
        is_close = record.kind is LedgerKind.CLOSE
        return replace(record, low_water_marks=(0,) * len(record.low_water_marks)) if is_close else record

    assert "goes back" in findings(run.audit(run.rechained(edit)), "I1")[0].message


def test_i2_a_group_and_replica_trained_twice(run: AuditedRun) -> None:
    first, other = run.verdict(Disposition.TRAINED), run.verdict(Disposition.LOST)
    again = replace(other, disposition=Disposition.TRAINED, group_id=first.group_id, replica=first.replica)

    report = run.audit(run.with_verdict(other, **{name: getattr(again, name) for name in again.__slots__}))

    found = findings(report, "I2")
    assert any("is trained twice" in finding.message for finding in found)
    assert place_of(run, other) in places(found)


def test_i2_trained_outside_of_a_step(run: AuditedRun) -> None:
    lost = run.verdict(Disposition.LOST)
    report = run.audit(run.with_verdict(lost, disposition=Disposition.TRAINED))

    outside = [finding for finding in findings(report, "I2") if "outside of a step" in finding.message]
    assert places(outside) == [place_of(run, lost)]
    of_lost = findings(report, "verdicts")[0]
    assert (places([of_lost]), of_lost.expected) == ([place_of(run, lost)], "lost")


def test_i3_a_group_over_the_bound(run: AuditedRun) -> None:
    report = run.audit(with_alpha(run, 1.0))

    trained = [
        verdict
        for record in run.ledger
        for verdict in record.verdicts
        if verdict.disposition is Disposition.TRAINED and (verdict.lag or 0) > 1
    ]
    assert trained
    found = findings(report, "I3")
    assert places(found) == [place_of(run, verdict) for verdict in trained]
    assert found[0].expected == "lag 1 or less"


def test_i3_more_groups_at_the_bound_than_the_quota(run: AuditedRun) -> None:
    """alpha 1.2 and two groups a batch: floor(0.2 x 2) = 0 groups may have lag 2."""
    assert not findings(run.audit(with_alpha(run, 2.0)), "I3")
    found = findings(run.audit(with_alpha(run, 1.2)), "I3")

    assert [finding.expected for finding in found] == ["0 or fewer"]
    assert "more groups of lag 2" in found[0].message


def test_i3_an_alpha_that_was_not_written_before_the_step(run: AuditedRun) -> None:
    (finding,) = findings(run.audit(with_steps(run, 2, alpha=3.0)), "I3")
    assert (finding.expected, finding.found) == ("1.5", "3.0")

    def edit(record: LedgerRecord) -> LedgerRecord:
        return replace(record, alpha=9.0) if record.kind is LedgerKind.CLOSE else record

    (finding,) = findings(run.audit(run.rechained(edit)), "I3")
    assert "without a step" in finding.message


def test_i3_the_lag_that_the_ledger_says(run: AuditedRun) -> None:
    verdict = run.verdict(Disposition.TRAINED)
    (finding,) = findings(run.audit(run.with_verdict(verdict, lag=7)), "I3")
    assert (places([finding]), finding.found) == ([place_of(run, verdict)], "7")


def with_sample(run: AuditedRun, verdict: Verdict, **changes: Any) -> RecordedTopics:
    """A sample differs, and the ledger holds the digest of it as it is now."""
    record = run.sample(verdict)
    value = encode(replace(decode_as(Sample, record.value or b""), **changes))
    forged = run.recorded.with_value(record, value)
    return run.with_verdict(verdict, by=forged, digest=sha256(value).digest()[:16])


def test_i4_trained_tokens_of_weights_that_were_never_committed(run: AuditedRun) -> None:
    verdict = run.verdict(Disposition.TRAINED)
    sample = decode_as(Sample, run.sample(verdict).value or b"")
    segments = tuple(replace(segment, weights_digest="0" * 16) for segment in sample.segments)
    report = run.audit(with_sample(run, verdict, segments=segments))

    found = findings(report, "I4")
    assert places(found) == [place_of(run, verdict)] * len(segments)
    assert found[0].found == "0" * 16
    assert findings(report, "verdicts")[0].expected == "stale"


def test_i4_a_step_that_starts_from_other_weights(run: AuditedRun) -> None:
    (finding,) = findings(run.audit(with_steps(run, 3, weights_sha256_before="f" * 64)), "I4")
    assert finding.found == "f" * 64
    assert "version 2" in finding.message


def a_reissue(run: AuditedRun, verdict: Verdict, **changes: Any) -> RolloutTask:
    """Another attempt at what a disposition is about, issued when its record had been read."""
    tasks = (decode(record.value or b"") for record in run.recorded.all(run.topics.tasks))
    known = next(
        task for task in tasks if isinstance(task, RolloutTask) and task.group_id == verdict.group_id
    )
    seed = f"0/{verdict.group_id}/{verdict.replica}/7"
    values: dict[str, Any] = {
        "task_id": "1.999",
        "replica": verdict.replica,
        "attempt": 7,
        "seed": int.from_bytes(sha256(seed.encode()).digest()[:4], "little") >> 1,
        "epoch": 99,
        "ledger_position": run.steps[2].offset,
        "samples_positions": (verdict.offset + 1,) * 2,
    }
    return replace(known, **(values | changes))


def test_i5_a_finished_rollout_that_is_ordered_again(run: AuditedRun) -> None:
    verdict = run.verdict(Disposition.TRAINED)
    place = TopicPartition(run.topics.tasks, 2)
    task = a_reissue(run, verdict)
    report = run.audit(run.recorded.with_more(place, encode(task)))

    (finding,) = findings(report, "I5")
    assert places([finding]) == [(place.topic, place.partition, run.recorded.ends[place])]
    assert finding.record_id == "task 1.999, attempt 7"
    assert verdict.sample_id in finding.message
    assert finding.found.startswith("trained at offset")

    before = a_reissue(run, verdict, samples_positions=(verdict.offset,) * 2)
    assert run.audit(run.recorded.with_more(place, encode(before))).is_clean


def test_i5_a_stale_one_may_come_again_once_its_verdict_is_out(run: AuditedRun) -> None:
    verdict = run.verdict(Disposition.STALE)
    place, end = TopicPartition(run.topics.tasks, 2), run.recorded.ends[TopicPartition(run.topics.steps, 0)]
    judged = a_reissue(run, verdict, ledger_position=end)
    unjudged = a_reissue(run, verdict, ledger_position=run.steps[2].offset)

    assert run.audit(run.recorded.with_more(place, encode(judged))).is_clean
    assert len(findings(run.audit(run.recorded.with_more(place, encode(unjudged))), "I5")) == 1


def test_i5_is_asked_behind_a_fence_of_an_epoch_that_nobody_took(run: AuditedRun) -> None:
    task = encode(a_reissue(run, run.verdict(Disposition.TRAINED)))
    place = TopicPartition(run.topics.tasks, 2)
    fenced = run.recorded.with_more(place, encode(Fence(epoch=10**9)))
    assert len(findings(run.audit(fenced.with_more(place, task)), "I5")) == 1


def test_i5_is_not_asked_of_a_task_whose_id_stands_for_two(run: AuditedRun) -> None:
    verdict = run.verdict(Disposition.TRAINED)
    place = TopicPartition(run.topics.tasks, 2)
    own = a_reissue(run, verdict, samples_positions=(verdict.offset,) * 2)
    seed = sampling_seed(0, verdict.group_id, verdict.replica, 6)
    copied = a_reissue(run, verdict, attempt=6, seed=seed)

    assert not run.audit(run.recorded.with_more(place, encode(copied))).is_clean
    report = run.audit(run.recorded.with_more(place, encode(own)).with_more(place, encode(copied)))
    assert findings(report, "I5") == []
    assert any("ordered by several tasks that differ" in note for note in report.notes)


def test_i5_is_not_asked_of_void_or_foreign_tasks(run: AuditedRun) -> None:
    verdict = run.verdict(Disposition.TRAINED)
    place = TopicPartition(run.topics.tasks, 2)
    foreign = run.audit(run.recorded.with_more(place, encode(a_reissue(run, verdict, seed=1))))
    void = run.audit(run.recorded.with_more(place, encode(a_reissue(run, verdict, epoch=0))))
    later = run.audit(run.recorded.with_more(place, encode(a_reissue(run, verdict, ledger_position=1 << 40))))

    assert foreign.is_clean
    assert any("no dispatcher of this run" in note for note in foreign.notes)
    assert void.is_clean
    assert later.is_clean
    assert check(later, "I5").num_unchecked == 1


@pytest.mark.parametrize(
    ("name", "value"),
    [("num_samples", 5), ("num_groups", 1), ("num_tokens", 1), ("reward_mean", 0.123), ("lags", {"0": 1})],
)
def test_i6_a_step_whose_figures_are_not_those_of_its_samples(run: AuditedRun, name: str, value: Any) -> None:
    found = findings(run.audit(with_steps(run, 2, **{name: value})), "I6")
    assert name in found[0].message


def test_i6_a_plan_that_does_not_fit_the_batch(run: AuditedRun) -> None:
    body = next(record.body for record in run.ledger if record.version == 2 and isinstance(record.body, Step))
    short = tuple(replace(part, positions=part.positions[:-1]) for part in body.plan)
    wide = tuple(replace(part, rank=5, positions=(*part.positions, 99)) for part in body.plan)

    assert "equally often" in findings(run.audit(with_steps(run, 2, plan=short)), "I6")[0].message
    messages = [finding.message for finding in findings(run.audit(with_steps(run, 2, plan=wide)), "I6")]
    assert any("positions [99]" in message for message in messages)
    assert any("ranks [5]" in message for message in messages)


@pytest.mark.parametrize(
    "wrong", [Disposition.FAILED, Disposition.REDUNDANT, Disposition.FILTERED, Disposition.DEAD]
)
def test_a_disposition_that_its_record_contradicts(run: AuditedRun, wrong: Disposition) -> None:
    verdict = run.verdict(Disposition.STALE)
    report = run.audit(run.with_verdict(verdict, disposition=wrong))

    found = [finding for finding in findings(report, "verdicts") if finding.place is not None]
    assert place_of(run, verdict) in places(found)
    assert any(finding.found.startswith(wrong) for finding in found)


def test_a_fresh_sample_that_was_called_stale(run: AuditedRun) -> None:
    verdict = run.verdict(Disposition.TRAINED)
    report = run.audit(run.with_verdict(verdict, disposition=Disposition.STALE))

    (finding,) = findings(report, "verdicts")
    assert place_of(run, verdict) in places([finding])
    assert finding.expected == "redundant"


def test_a_verdict_on_somebody_else(run: AuditedRun) -> None:
    verdict = run.verdict(Disposition.LOST)
    report = run.audit(run.with_verdict(verdict, sample_id="g77.r0.a0"))

    (finding,) = findings(report, "verdicts")
    assert finding.found.startswith("g77.r0.a0")


def test_a_group_that_is_closed_twice(run: AuditedRun) -> None:
    closed = next(record.closed_groups for record in run.ledger if record.closed_groups)

    def edit(record: LedgerRecord) -> LedgerRecord:
        return replace(record, closed_groups=closed[:1]) if record.kind is LedgerKind.CLOSE else record

    (finding,) = findings(run.audit(run.rechained(edit)), "verdicts")
    assert "closed twice" in finding.message


def test_a_chain_with_records_where_none_may_be(run: AuditedRun) -> None:
    genesis, close = run.ledger[0], run.ledger[-1]

    def second_genesis(record: LedgerRecord) -> LedgerRecord:
        return replace(genesis, version=4) if record.kind is LedgerKind.CLOSE else record

    def early_close(record: LedgerRecord) -> LedgerRecord:
        return replace(close, version=0) if record.sequence == 1 else record

    def jump(record: LedgerRecord) -> LedgerRecord:
        return replace(record, version=record.version + 3) if record.version > 2 else record

    assert "second genesis" in findings(run.audit(run.rechained(second_genesis)), "chain")[0].message
    messages = {finding.message for finding in findings(run.audit(run.rechained(early_close)), "chain")}
    assert messages == {"it comes after the close record"}
    (finding,) = findings(run.audit(run.rechained(jump)), "chain")
    assert (finding.expected, finding.found) == ("version 3", "version 6")


def test_an_evaluation_of_weights_that_were_never_committed(run: AuditedRun) -> None:
    trained = run.sample(run.verdict(Disposition.TRAINED))
    sample = decode_as(Sample, trained.value or b"")
    segments = tuple(replace(segment, weights_digest="0" * 16) for segment in sample.segments)
    place = TopicPartition(run.topics.evaluations, 1)
    forged = encode(replace(sample, segments=segments))
    report = run.audit(run.recorded.with_more(place, trained.value, forged))

    found = findings(report, "I4")
    assert {at and at[:2] for at in places(found)} == {(place.topic, 1)}
    assert all(at and at[2] == run.recorded.ends[place] + 1 for at in places(found))
    unfinished = encode(replace(sample, status=Status.FAILED, segments=segments))
    assert run.audit(run.recorded.with_more(place, unfinished)).is_clean
