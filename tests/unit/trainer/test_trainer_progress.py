"""When a run is given up because nothing in it can be trained."""

from __future__ import annotations

import pytest
from builders import LedgerBuilder, groups_config

from rollog.errors import DataError
from schemas import ClosedGroup, Disposition
from trainer.progress import check_progress


def close(ledger: LedgerBuilder, *outcomes: Disposition) -> None:
    """One verdicts record (a step where something was trained) that closes groups in this way."""
    first = len(ledger.state.closed_groups)
    closed = [ClosedGroup(group_id=first + place, outcome=each) for place, each in enumerate(outcomes)]
    record = ledger.step if Disposition.TRAINED in outcomes else ledger.verdicts
    record(closed=closed)


def test_too_many_groups_without_a_trained_one_are_an_error_that_names_counts_and_remedy() -> None:
    ledger = LedgerBuilder()
    groups = groups_config(max_untrained_in_a_row=4)
    close(ledger, Disposition.FILTERED, Disposition.FILTERED)
    close(ledger, Disposition.INCOMPLETE)
    check_progress(ledger.state, groups)
    close(ledger, Disposition.FILTERED)
    with pytest.raises(DataError, match=r"last 4 groups .*3 filtered.*1 incomplete.*max_untrained_in_a_row"):
        check_progress(ledger.state, groups)


def test_a_trained_group_begins_the_count_anew() -> None:
    ledger = LedgerBuilder()
    groups = groups_config(max_untrained_in_a_row=3)
    close(ledger, Disposition.FILTERED, Disposition.FILTERED)
    close(ledger, Disposition.TRAINED, Disposition.FILTERED)
    close(ledger, Disposition.FILTERED, Disposition.FILTERED)
    check_progress(ledger.state, groups)
    close(ledger, Disposition.FILTERED)
    with pytest.raises(DataError, match="last 3 groups"):
        check_progress(ledger.state, groups)
