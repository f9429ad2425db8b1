"""When a run is given up because nothing in it can be trained."""

from __future__ import annotations

import pytest
from support.builders import LedgerBuilder, a_header, groups_config

from rollog.kernel.errors import DataError
from schemas import ClosedGroup, Disposition
from trainer.buffer.verdicts import verdict_of
from trainer.progress import check_progress


def close(ledger: LedgerBuilder, *outcomes: Disposition) -> None:
    """One verdicts record (a step where something was trained) that closes groups in this way."""
    first = len(ledger.state.closed_groups)
    closed = [ClosedGroup(group_id=first + place, outcome=each) for place, each in enumerate(outcomes)]
    headers = [a_header(group.group_id, offset=group.group_id) for group in closed]
    verdicts = [
        verdict_of(header, outcome, version=0, reason="too_hard" if outcome is Disposition.FILTERED else "")
        for header, outcome in zip(headers, outcomes, strict=True)
    ]
    record = ledger.step if Disposition.TRAINED in outcomes else ledger.verdicts
    record(verdicts, closed)


def test_too_many_groups_without_a_trained_one_are_an_error_that_names_counts_and_remedy() -> None:
    ledger = LedgerBuilder()
    groups = groups_config(max_untrained_in_a_row=4)
    close(ledger, Disposition.FILTERED, Disposition.FILTERED)
    close(ledger, Disposition.INCOMPLETE)
    check_progress(ledger.state, groups)
    close(ledger, Disposition.FILTERED)
    with pytest.raises(
        DataError, match=r"last 4 groups .*3 filtered.*1 incomplete.*3 too_hard.*max_untrained"
    ):
        check_progress(ledger.state, groups)


def test_what_an_attempt_failed_with_is_said() -> None:
    ledger = LedgerBuilder()
    close(ledger, Disposition.INCOMPLETE)
    with pytest.raises(DataError, match="newest failed attempt says 'PromptTooLong: 70 tokens'; check"):
        check_progress(ledger.state, groups_config(max_untrained_in_a_row=1), "PromptTooLong: 70 tokens")


def test_a_trained_group_begins_the_count_anew() -> None:
    ledger = LedgerBuilder()
    groups = groups_config(max_untrained_in_a_row=3)
    close(ledger, Disposition.FILTERED, Disposition.FILTERED)
    close(ledger, Disposition.TRAINED, Disposition.FILTERED)
    close(ledger, Disposition.FILTERED, Disposition.FILTERED)
    check_progress(ledger.state, groups)
    close(ledger, Disposition.FILTERED)
    with pytest.raises(DataError, match=r"last 3 groups .*filtered as 3 too_hard"):
        check_progress(ledger.state, groups)
