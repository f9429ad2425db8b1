"""What may be deleted of a run's samples."""

from __future__ import annotations

import pytest
from support.builders import LedgerBuilder

from rollog.kernel.errors import ConfigError
from rollog.run.retention import PrunePlan, plan_prune
from schemas import ClosedGroup, Disposition, LedgerRecord, Verdict


def a_verdict(group: int, offset: int, disposition: Disposition = Disposition.TRAINED) -> Verdict:
    return Verdict(
        partition=group % 4,
        offset=offset,
        sample_id=f"g{group}.r0.a{offset}",
        digest=bytes(16),
        group_id=group,
        replica=offset,
        disposition=disposition,
    )


def closed(*groups: int) -> list[ClosedGroup]:
    return [ClosedGroup(group_id=group, outcome=Disposition.TRAINED) for group in groups]


def a_ledger() -> list[LedgerRecord]:
    """Five steps; step v trains group 4 v and a second group, each on a partition of its own, at offsets of v."""
    ledger = LedgerBuilder()
    for version in range(1, 6):
        verdicts = [a_verdict(4 * version, 10 * version), a_verdict(4 * version + 1, 10 * version)]
        mark = 10 * version + 1
        ledger.step(verdicts, closed(4 * version, 4 * version + 1), marks=(mark, mark, 0, 7))
    return ledger.records


def plan(ledger: list[LedgerRecord], keep_steps: int, redo_from: int | None) -> PrunePlan:
    return plan_prune(ledger, (0, 0, 0, 0), keep_steps=keep_steps, redo_from=redo_from)


def test_everything_below_the_window_goes_and_partitions_without_samples_in_it_up_to_their_marks() -> None:
    found = plan(a_ledger(), 2, None)
    assert found.offsets == (40, 40, 0, 7)
    assert (found.num_deleted, found.num_unchecked, found.last_step_lost) == (87, 6, 3)


def test_a_ledger_that_can_be_gone_over_once_is_enough() -> None:
    once = iter(a_ledger())
    assert plan_prune(once, (0, 0, 0, 0), keep_steps=2, redo_from=4) == plan(a_ledger(), 2, 4)


def test_a_window_as_long_as_the_run_keeps_everything_that_was_judged() -> None:
    found = plan(a_ledger(), 5, 1)
    assert found.offsets == (10, 10, 0, 7)
    assert (found.num_unchecked, found.last_step_lost) == (0, 0)


def test_samples_that_a_restarted_trainer_would_train_again_are_kept() -> None:
    assert plan(a_ledger(), 2, 4).offsets == (40, 40, 0, 7)
    with pytest.raises(ConfigError, match=r"steps 3 to 5 again .* keep at least 3 steps"):
        plan(a_ledger(), 2, 3)
    with pytest.raises(ConfigError, match="keep at least 5 steps"):
        plan(a_ledger(), 4, 1)


def test_attempts_at_groups_that_are_open_are_kept_until_the_run_is_closed() -> None:
    ledger = LedgerBuilder()
    ledger.verdicts([a_verdict(8, 5, Disposition.FAILED)], marks=(0, 0, 0, 0))
    for version in range(1, 4):
        ledger.step(
            [a_verdict(4 * (version + 2), 10 * version)],
            closed(4 * (version + 2)),
            marks=(10 * version + 1, 0, 0, 0),
        )
    assert plan(ledger.records, 1, 3).offsets == (5, 0, 0, 0)
    assert plan(ledger.records, 1, None).offsets == (30, 0, 0, 0)


def test_verdicts_published_after_the_last_step_let_go_belong_to_the_window() -> None:
    ledger = LedgerBuilder()
    ledger.step([a_verdict(0, 3)], closed(0), marks=(4, 0, 0, 0))
    ledger.verdicts([a_verdict(4, 9, Disposition.STALE)], marks=(4, 0, 0, 0))
    ledger.step([a_verdict(8, 12)], closed(8, 4), marks=(13, 0, 0, 0))
    assert plan(ledger.records, 1, None).offsets == (9, 0, 0, 0)


def test_what_was_deleted_before_stays_deleted_and_an_empty_ledger_is_refused() -> None:
    found = plan_prune(a_ledger(), (50, 0, 0, 7), keep_steps=2, redo_from=None)
    assert found.offsets == (50, 40, 0, 7)
    assert found.num_deleted == 40
    with pytest.raises(ConfigError, match="not begun"):
        plan_prune([], (), keep_steps=1, redo_from=None)
