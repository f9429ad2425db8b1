"""What a transactional producer may be asked, in each of its states."""

from __future__ import annotations

import pytest

from rollog.kernel.broker.transaction_guard import TransactionGuard
from rollog.kernel.errors import BrokerError, BrokerTimeout, ProducerFenced, RecordTooLarge


def an_open_guard() -> TransactionGuard:
    guard = TransactionGuard("t")
    guard.require_idle()
    guard.begun()
    return guard


def test_records_need_a_transaction() -> None:
    guard = TransactionGuard("t")
    assert not guard.can_abort
    with pytest.raises(ValueError, match="no transaction of t is open"):
        guard.require_transaction()


def test_a_transaction_begins_only_after_the_one_before_it() -> None:
    guard = an_open_guard()
    guard.require_transaction()
    with pytest.raises(ValueError, match="already open"):
        guard.require_idle()
    guard.finished()
    guard.require_idle()


@pytest.mark.parametrize("error", [ProducerFenced("fenced"), BrokerTimeout("no answer")])
def test_who_cannot_know_the_outcome_ends_without_an_abort(error: BrokerError) -> None:
    guard, aborted = an_open_guard(), []
    guard.record_failed(error, lambda: aborted.append(True))
    assert guard.has_ended
    assert not aborted
    for ask in (guard.require_idle, guard.require_transaction):
        with pytest.raises(type(error)):
            ask()


def test_a_record_that_was_refused_aborts_and_leaves_the_producer_usable() -> None:
    guard = an_open_guard()
    guard.record_failed(RecordTooLarge("too large"), guard.finished)
    guard.require_idle()


def test_an_abort_that_fails_does_not_hide_the_first_failure() -> None:
    guard = an_open_guard()

    def abort() -> None:
        raise guard.end(ProducerFenced("fenced meanwhile"))

    guard.record_failed(RecordTooLarge("too large"), abort)
    assert guard.has_ended


def test_a_closed_producer_takes_nothing() -> None:
    guard = an_open_guard()
    guard.closed()
    assert not guard.can_abort
    with pytest.raises(ValueError, match="is closed"):
        guard.require_transaction()
