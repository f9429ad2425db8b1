"""Somebody has been at the topics or at the weights: the audit names what was altered, and where."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from hashlib import sha256
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.audited_run import check, findings, places

from rollog.kernel.broker.ports import TopicPartition
from schemas import DeadLetter, Disposition, LedgerKind, LedgerRecord, RunClosed, Step, WeightVersion
from schemas.codec import decode, decode_as, encode

if TYPE_CHECKING:
    from pathlib import Path

    from support.altered_topics import RecordedTopics
    from support.audited_run import AuditedRun

    from rollog.kernel.broker.ports import Record


def with_other_byte(record: Record, at: int) -> bytes:
    value = bytearray(record.value or b"")
    value[at] ^= 1
    return bytes(value)


def with_other_loss(record: Record) -> bytes:
    decoded = decode_as_ledger(record)
    assert isinstance(decoded.body, Step)
    return encode(replace(decoded, body=replace(decoded.body, losses=(1234.5,))))


def without_closing(run: AuditedRun, recorded: RecordedTopics) -> RecordedTopics:
    """Nobody has said yet that the run is closed."""
    said = [
        record
        for record in recorded.all(run.topics.control)
        if isinstance(decode(record.value or b""), RunClosed)
    ]
    for record in said:
        recorded = recorded.without(record)
    return recorded


def decode_as_ledger(record: Record) -> LedgerRecord:
    return decode_as(LedgerRecord, record.value or b"")


@pytest.mark.parametrize(
    "disposition", [Disposition.TRAINED, Disposition.STALE, Disposition.LOST, Disposition.DEAD]
)
@pytest.mark.parametrize("at", [0, 20, -1])
def test_an_altered_byte_of_a_sample_is_named(run: AuditedRun, disposition: Disposition, at: int) -> None:
    verdict = run.verdict(disposition)
    record = run.sample(verdict)
    at = min(at, len(record.value or b"") - 1)
    report = run.audit(run.recorded.with_value(record, with_other_byte(record, at)))

    (finding,) = findings(report, "digests")
    assert places([finding]) == [(run.topics.samples, verdict.partition, verdict.offset)]
    assert (finding.record_id, finding.expected) == (verdict.sample_id, verdict.digest.hex())
    assert finding.found != finding.expected
    assert len(report.findings) == 1
    assert check(report, "I6").num_unchecked == (disposition is Disposition.TRAINED)


def test_a_sample_that_was_taken_away_is_named(run: AuditedRun) -> None:
    verdict = run.verdict(Disposition.TRAINED)
    report = run.audit(run.recorded.without(run.sample(verdict)))

    (finding,) = findings(report, "I1")
    assert places([finding]) == [(run.topics.samples, verdict.partition, verdict.offset)]
    assert finding.record_id == verdict.sample_id


@pytest.mark.parametrize("which", range(8))
def test_a_ledger_record_that_was_removed_is_missed(run: AuditedRun, which: int) -> None:
    """All but the last: that the end is missing shows only against a head."""
    report = run.audit(run.recorded.without(run.steps[which]))

    finding = findings(report, "chain")[0]
    assert places([finding]) == [(run.topics.steps, 0, run.steps[which + 1].offset)]
    if which > 0:
        assert f"record {which} is missing" in finding.message
        assert (finding.expected, finding.found) == (f"sequence {which}", f"sequence {which + 1}")
    assert len(findings(report, "chain")) == 1
    assert {each.name for each, _ in report.findings} <= {"chain", "I4"}


def test_the_close_record_that_was_removed_shows_against_a_head(run: AuditedRun) -> None:
    """Once RunClosed is on control, too, that one points beyond the end."""
    head = run.audit().head.sha256
    cut = run.recorded.without(run.steps[-1])

    assert [each.name for each, _ in run.audit(cut).findings] == ["end"]
    before = without_closing(run, cut)
    assert run.audit(before).is_clean
    (finding,) = findings(run.audit(before, head=head), "chain")
    assert finding.expected == head


def test_ledger_records_that_were_reordered_are_named(run: AuditedRun) -> None:
    steps = run.steps
    one, other = steps[4], steps[6]
    recorded = run.recorded.with_value(one, other.value).with_value(other, one.value)
    report = run.audit(recorded)

    found = findings(report, "chain")
    named = [(place and place[2], finding.found) for place, finding in zip(places(found), found, strict=True)]
    assert (one.offset, "sequence 6") in named
    assert (other.offset, "sequence 4") in named
    assert {offset for offset, _ in named} == {steps[number].offset for number in (4, 5, 6, 7)}


def test_a_ledger_record_that_was_rewritten_breaks_the_link_behind_it(run: AuditedRun) -> None:
    step = next(record for record in run.steps if decode_as_ledger(record).kind is LedgerKind.STEP)
    number = run.steps.index(step)
    report = run.audit(run.recorded.with_value(step, with_other_loss(step)))

    (finding,) = findings(report, "chain")
    assert places([finding]) == [(run.topics.steps, 0, run.steps[number + 1].offset)]
    assert f"record {number} (step) at offset {step.offset}" in finding.message
    assert len(report.findings) == 1


def test_one_broken_link_does_not_hide_the_next(run: AuditedRun) -> None:
    first, second = [record for record in run.steps if decode_as_ledger(record).kind is LedgerKind.STEP][:3:2]
    verdict = run.verdict(Disposition.LOST)
    recorded = run.recorded.with_value(first, with_other_loss(first)).without(second)
    sample = run.sample(verdict)
    report = run.audit(recorded.with_value(sample, with_other_byte(sample, -1)))

    assert len(findings(report, "chain")) == 2
    assert len(findings(report, "digests")) == 1


def test_a_chain_made_anew_shows_only_against_a_head(run: AuditedRun) -> None:
    head = run.audit().head.sha256
    assert head is not None

    def edit(record: LedgerRecord) -> LedgerRecord:
        is_second = isinstance(record.body, Step) and record.version == 2
        return replace(record, body=replace(record.body, losses=(9.9,))) if is_second else record  # type: ignore[type-var]

    forged = run.rechained(edit)
    without_head = run.audit(forged)
    assert without_head.is_clean
    assert any("only against a head kept elsewhere" in line for line in without_head.lines())
    (finding,) = findings(run.audit(forged, head=head), "chain")
    assert finding.expected == head


def test_a_head_kept_earlier_is_found_in_the_chain(run: AuditedRun) -> None:
    newest = run.audit(head=run.audit().head.sha256)
    assert newest.is_clean
    assert "it is the last record" in str(newest.head)

    steps = TopicPartition(run.topics.steps, 0)
    earlier = run.audit(run.recorded.growing(steps, run.steps[5].offset)).head.sha256
    report = run.audit(head=earlier)
    assert report.is_clean
    assert (report.head.is_found, report.head.num_later) == (True, len(run.steps) - 5)


def test_a_swapped_weights_file_is_named(run: AuditedRun, tmp_path: Path) -> None:
    weights = run.copied_weights(tmp_path)
    first, second = sorted(weights.glob("*-00.safetensors"))[1:3]
    second.write_bytes(first.read_bytes())
    report = run.audit(weights=weights)

    (finding,) = findings(report, "I4 files")
    assert finding.record_id == "version 2"
    assert finding.expected == decode_as_notice(run, 2).sha256
    assert re.search(rf"tensor 'digest' of {second.name} has a leaf \w+ instead of", finding.found)


def test_a_swapped_manifest_is_named(run: AuditedRun, tmp_path: Path) -> None:
    weights = run.copied_weights(tmp_path)
    first, second = sorted(weights.glob("*.manifest"))[1:3]
    second.write_bytes(first.read_bytes())
    (finding,) = findings(run.audit(weights=weights), "I4 files")
    assert finding.record_id == "version 2"
    assert f"weights {second.name} have sha256" in finding.found


def test_a_manifest_that_is_wrong_about_a_shard_is_named_though_the_tensors_are_right(
    run: AuditedRun, tmp_path: Path
) -> None:
    weights = run.copied_weights(tmp_path)
    manifest = sorted(weights.glob("*.manifest"))[1]
    lines = manifest.read_bytes().split(b"\n")
    storage = json.loads(lines[2])
    storage["shards"][0][2] = "0" * 64
    text = b"\n".join([*lines[:2], json.dumps(storage, sort_keys=True, separators=(",", ":")).encode(), b""])
    manifest.write_bytes(text)
    record = run.recorded.all(run.topics.weights)[1]
    notice = replace(decode_as_notice(run, 1), manifest_sha256=sha256(text).hexdigest())
    report = run.audit(run.recorded.with_value(record, encode(notice)), weights=weights)
    (finding,) = findings(report, "I4 files")
    assert "is wrong about the file" in finding.found


def decode_as_notice(run: AuditedRun, version: int) -> WeightVersion:
    return decode_as(WeightVersion, run.recorded.all(run.topics.weights)[version].value or b"")


def test_a_missing_weights_file_is_told_and_off_only_at_the_ends(run: AuditedRun, tmp_path: Path) -> None:
    weights = run.copied_weights(tmp_path)
    files = sorted(weights.glob("*.manifest"))
    files[1].unlink()
    files[2].unlink()
    report = run.audit(weights=weights)
    assert report.is_clean
    assert [missing.what.split(" in ")[0] for missing in report.missing] == [
        "weights files of 2 version(s) (1-2)"
    ]
    assert check(report, "I4 files").num_checked == 3

    files[0].unlink()
    files[-1].unlink()
    found = findings(run.audit(weights=weights), "I4 files")
    assert [finding.record_id for finding in found] == ["version 0", "version 4"]


def test_a_forged_or_missing_notice_is_named(run: AuditedRun) -> None:
    record = run.recorded.all(run.topics.weights)[2]
    notice = decode_as(WeightVersion, record.value or b"")

    forged = run.audit(run.recorded.with_value(record, encode(replace(notice, sha256="0" * 64))))
    (finding,) = findings(forged, "I4")
    assert places([finding]) == [(run.topics.weights, 0, record.offset)]
    assert (finding.expected, finding.found) == (notice.sha256, "0" * 64)

    renamed = run.audit(run.recorded.with_value(record, encode(replace(notice, name="v1-other.safetensors"))))
    assert findings(renamed, "I4")[0].found == "v1-other.safetensors"

    missing = run.audit(run.recorded.without(record))
    assert findings(missing, "I4")[0].record_id == f"version {notice.version}"

    place = TopicPartition(run.topics.weights, 0)
    again = encode(replace(notice, name=f"v{notice.version:06d}-0123456789abcdef.manifest"))
    published_again = run.audit(run.recorded.with_more(place, again))
    assert findings(published_again, "I4") == []
    assert ["(2)" in missing.what for missing in published_again.missing] == [True]

    twice = run.audit(run.recorded.with_more(place, record.value, encode(replace(notice, version=77))))
    assert [finding.record_id for finding in findings(twice, "I4")] == [
        f"version {notice.version}",
        "version 77",
    ]


def test_dead_letters_are_there_once_with_the_bytes_of_what_was_judged_dead(run: AuditedRun) -> None:
    letter = run.recorded.all(run.topics.dead_letters)[0]
    place = TopicPartition(run.topics.dead_letters, 0)
    content = decode_as(DeadLetter, letter.value or b"")
    trained = run.verdict(Disposition.TRAINED)
    other = encode(replace(content, partition=trained.partition, offset=trained.offset))
    altered = encode(replace(content, value=b"other bytes"))

    gone = findings(run.audit(run.recorded.without(letter)), "dead letters")
    assert places(gone) == [(run.topics.samples, content.partition, content.offset)]
    twice = findings(run.audit(run.recorded.with_more(place, letter.value)), "dead letters")
    assert "a second dead letter" in twice[0].message
    unfounded = findings(run.audit(run.recorded.with_more(place, other)), "dead letters")
    assert unfounded[0].found == "trained"
    replaced = findings(run.audit(run.recorded.with_value(letter, altered)), "dead letters")
    assert "does not hold the bytes" in replaced[0].message


@pytest.mark.parametrize("name", ["steps", "samples"])
@given(data=st.data())
@settings(max_examples=100, derandomize=True, suppress_health_check=list(HealthCheck))
def test_with_a_head_no_altered_byte_of_ledger_or_samples_goes_unseen(
    run: AuditedRun, name: str, data: st.DataObject
) -> None:
    """Wherever the byte is, whether or not the record can still be decoded."""
    head = run.recorded_head
    record = data.draw(st.sampled_from(run.recorded.all(getattr(run.topics, name))))
    value = bytearray(record.value or b"")
    at = data.draw(st.integers(0, len(value) - 1))
    value[at] ^= data.draw(st.integers(1, 255))
    report = run.audit(run.recorded.with_value(record, bytes(value)), head=head)

    assert not report.is_clean
    assert list(report.lines())


@pytest.mark.parametrize("name", ["weights", "tasks", "dead_letters", "evaluations", "workers", "control"])
@given(data=st.data())
@settings(max_examples=30, derandomize=True, suppress_health_check=list(HealthCheck))
def test_altered_records_of_other_topics_are_survived(
    run: AuditedRun, name: str, data: st.DataObject
) -> None:
    records = [record for record in run.recorded.all(getattr(run.topics, name)) if record.value]
    if not records:
        return
    record = data.draw(st.sampled_from(records))
    value = bytearray(record.value or b"")
    value[data.draw(st.integers(0, len(value) - 1))] ^= data.draw(st.integers(1, 255))

    assert list(run.audit(run.recorded.with_value(record, bytes(value))).lines())
