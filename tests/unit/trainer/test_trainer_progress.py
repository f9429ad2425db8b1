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


@pytest.mark.parametrize(("groups_per_batch", "num_groups"), [(12, 12), (1, 8)])
def test_a_run_in_which_every_rollout_fails_ends_after_its_first_batch(
    groups_per_batch: int, num_groups: int
) -> None:
    ledger = LedgerBuilder()
    groups = groups_config(groups_per_batch=groups_per_batch)
    fail_a_group(ledger, num_groups - 1)
    check_progress(ledger.state, groups)
    fail_a_group(ledger)
    said = "RewardError: the reward function raised KeyError at my_rewards.py, line 7: 'x'"
    failed = (
        rf"first {num_groups} groups.*not one rollout.*{num_groups} attempts failed.*KeyError at my_rewards"
    )
    with pytest.raises(DataError, match=failed):
        check_progress(ledger.state, groups, said)


def test_a_run_in_which_nobody_scores_ends_after_its_first_batch() -> None:
    ledger = LedgerBuilder()
    for group in range(8):
        verdict = verdict_of(a_header(group, offset=group), Disposition.UNREWARDED, version=0)
        ledger.verdicts([verdict], [ClosedGroup(group_id=group, outcome=Disposition.INCOMPLETE)])
    with pytest.raises(DataError, match=r"for 8 no reward came within reward\.deadline_seconds"):
        check_progress(ledger.state, groups_config())


def test_one_rollout_with_a_reward_keeps_the_run_going() -> None:
    ledger = LedgerBuilder()
    groups = groups_config(groups_per_batch=1, max_untrained_in_a_row=1000)
    close(ledger, Disposition.FILTERED)
    fail_a_group(ledger, 9)
    check_progress(ledger.state, groups)


def test_left_out_the_limit_is_that_of_twenty_batches() -> None:
    assert groups_config(groups_per_batch=30).most_untrained_in_a_row == 600
    assert groups_config(groups_per_batch=3).most_untrained_in_a_row == 256
    assert groups_config(groups_per_batch=3, max_untrained_in_a_row=7).most_untrained_in_a_row == 7


def fail_a_group(ledger: LedgerBuilder, times: int = 1) -> None:
    """Groups whose only attempt failed, and which are closed for that."""
    for _ in range(times):
        group = len(ledger.state.closed_groups)
        header = a_header(group, offset=group)
        closed = [ClosedGroup(group_id=group, outcome=Disposition.INCOMPLETE)]
        ledger.verdicts([verdict_of(header, Disposition.FAILED, version=0)], closed)


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
