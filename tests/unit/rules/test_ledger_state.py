"""The fold of the ledger refuses what cannot follow."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.builders import LedgerBuilder, a_genesis, a_header, weights_sha256

from rollog.kernel.errors import LedgerError
from rollog.rules.ledger_state import LedgerState, record_hash
from schemas import Close, ClosedGroup, Disposition, LedgerKind, LedgerRecord, Step
from schemas.codec import encode
from trainer.buffer.verdicts import verdict_of


def close_record(state: LedgerState) -> LedgerRecord:
    return LedgerRecord(
        kind=LedgerKind.CLOSE,
        sequence=state.next_sequence,
        version=state.version,
        alpha=state.alpha,
        previous_hash=state.head,
        low_water_marks=state.low_water_marks,
        body=Close(end_offsets=state.low_water_marks, reason="done"),
    )


def test_the_fold_knows_version_alpha_weights_and_head() -> None:
    ledger = LedgerBuilder(alpha=0.5)
    record = ledger.step()
    assert (ledger.state.version, ledger.state.alpha) == (1, 0.5)
    assert ledger.state.weights == {0: weights_sha256(0), 1: weights_sha256(1)}
    assert ledger.state.head == record_hash(encode(record))


def test_of_a_step_that_is_sealed_everything_counts_but_its_weights() -> None:
    """A sample can have been begun with them only when they are committed."""
    written = LedgerBuilder(alpha=0.5)
    record = written.step()
    assert isinstance(record.body, Step)
    ahead = LedgerBuilder(alpha=0.5).state
    ahead.seal(replace(record, body=replace(record.body, weights_sha256="")))
    assert (ahead.version, ahead.next_sequence) == (1, 2)
    assert not ahead.knows_weights(1, "")
    assert not ahead.knows_weights(1, weights_sha256(1)[:16])
    ahead.land(record, record_hash(encode(record)))
    assert ahead == written.state


def test_amended_settings_are_known_by_revision() -> None:
    ledger = LedgerBuilder()
    ledger.amend('{"optimizer.learning_rate": 0.5, "run.num_steps": 7}')
    ledger.amend('{"optimizer.learning_rate": 0.25}')
    assert ledger.state.changed_settings(0) == {}
    assert ledger.state.changed_settings(1) == {"optimizer.learning_rate": 0.5, "run.num_steps": 7}
    assert ledger.state.changed_settings() == {"optimizer.learning_rate": 0.25, "run.num_steps": 7}
    assert ledger.state.num_steps(3) == 7
    assert LedgerBuilder().state.num_steps(3) == 3


@pytest.mark.parametrize(
    ("revision", "changes", "message"),
    [
        (2, "{}", "revision 2 of|begins revision 2, expected 1"),
        (1, "{", "no JSON"),
        (1, "[1]", "no JSON object"),
    ],
)
def test_an_amend_record_that_does_not_follow_is_refused(revision: int, changes: str, message: str) -> None:
    ledger = LedgerBuilder()
    with pytest.raises(LedgerError, match=message):
        ledger.amend(changes, revision)


def test_a_step_under_another_revision_than_the_one_in_force_is_refused() -> None:
    ledger = LedgerBuilder()
    with pytest.raises(LedgerError, match="names revision 1 of the settings, in force is 0"):
        ledger.step(revision=1)


def test_a_record_with_another_predecessor_is_refused() -> None:
    ledger = LedgerBuilder()
    record = replace(close_record(ledger.state), previous_hash=bytes(32))
    with pytest.raises(LedgerError, match="predecessor"):
        ledger.state.apply(record, bytes(32))


def test_a_missing_record_is_refused() -> None:
    ledger = LedgerBuilder()
    record = replace(close_record(ledger.state), sequence=5)
    with pytest.raises(LedgerError, match="missing or doubled"):
        ledger.state.apply(record, bytes(32))


def test_the_ledger_begins_with_genesis() -> None:
    state = LedgerState()
    with pytest.raises(LedgerError, match="genesis"):
        state.apply(replace(close_record(state), low_water_marks=(0,)), bytes(32))
    with pytest.raises(LedgerError, match="genesis"):
        LedgerBuilder().add(replace(a_genesis(), sequence=1, previous_hash=LedgerBuilder().state.head))


def test_nothing_follows_close() -> None:
    ledger = LedgerBuilder()
    ledger.add(close_record(ledger.state))
    assert ledger.state.is_closed
    with pytest.raises(LedgerError, match="after the close"):
        ledger.add(close_record(ledger.state))


def test_a_version_that_skips_is_refused() -> None:
    ledger = LedgerBuilder()
    record = replace(close_record(ledger.state), version=3)
    with pytest.raises(LedgerError, match="expected 0"):
        ledger.add(record)


def test_low_water_marks_of_another_number_of_partitions_are_refused() -> None:
    with pytest.raises(LedgerError, match="3 low-water marks, expected 4"):
        LedgerBuilder().step(marks=(0, 0, 0))


def test_a_verdict_on_a_partition_that_is_not_there_is_refused() -> None:
    verdict = verdict_of(replace(a_header(offset=0), partition=4), Disposition.FAILED, version=0)
    with pytest.raises(LedgerError, match="partition 4; samples has 4"):
        LedgerBuilder().verdicts([verdict])


def test_a_second_disposition_is_refused() -> None:
    ledger = LedgerBuilder()
    verdict = verdict_of(a_header(offset=0), Disposition.FAILED, version=0)
    ledger.verdicts([verdict])
    with pytest.raises(LedgerError, match="second disposition"):
        ledger.verdicts([verdict])


def test_below_the_low_water_mark_everything_is_disposed() -> None:
    ledger = LedgerBuilder()
    ledger.verdicts([verdict_of(a_header(offset=0), Disposition.FAILED, version=0)], marks=(1, 0, 0, 0))
    assert ledger.state.is_disposed(0, 0)
    assert not ledger.state.disposed
    assert not ledger.state.is_disposed(0, 1)


def test_a_rollout_trained_twice_and_a_group_closed_twice_are_refused() -> None:
    ledger = LedgerBuilder()
    ledger.step(
        [verdict_of(a_header(offset=0), Disposition.TRAINED, version=0)],
        [ClosedGroup(group_id=0, outcome=Disposition.TRAINED)],
    )
    with pytest.raises(LedgerError, match="trained twice"):
        ledger.step([verdict_of(a_header(offset=1), Disposition.TRAINED, version=1)])
    with pytest.raises(LedgerError, match="closed twice"):
        LedgerBuilder().step([], [ClosedGroup(group_id=0, outcome=Disposition.TRAINED)] * 2)


def test_failures_lost_and_stale_are_tallied_until_their_group_closes() -> None:
    ledger = LedgerBuilder()
    ledger.verdicts(
        [
            verdict_of(a_header(offset=0), Disposition.FAILED, version=0),
            verdict_of(a_header(offset=1), Disposition.DEAD, version=0),
            verdict_of(a_header(offset=2), Disposition.LOST, version=0),
            verdict_of(a_header(offset=3), Disposition.STALE, version=0),
        ]
    )
    tally = ledger.state.tallies[0][0]
    assert (tally.num_failed, tally.num_lost, tally.num_stale) == (2, 1, 1)
    assert ledger.state.stale_versions[0] == [(0, 0)]
    ledger.verdicts([], [ClosedGroup(group_id=0, outcome=Disposition.INCOMPLETE)])
    assert 0 not in ledger.state.tallies
    assert 0 not in ledger.state.stale_versions
