"""Which samples of a group count, what the others were, whether the group is protected."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from support.builders import LedgerBuilder, a_header, a_segment, freshness_config, groups_config

from rollog.rules.limits import ReplicaTally
from rollog.rules.members import facts_of_group, fresh_and_ended
from rollog.rules.verdicts import current_verdict
from schemas import CancelReason, ClosedGroup, Disposition, Status
from trainer.buffer.verdicts import verdict_of

if TYPE_CHECKING:
    from rollog.rules.headers import SampleHeader
    from rollog.rules.members import GroupFacts


def facts(
    ledger: LedgerBuilder, *headers: SampleHeader, freshness: dict[str, Any] | None = None, **groups: Any
) -> GroupFacts:
    fresh, endings = fresh_and_ended(headers, ledger.state)
    return facts_of_group(
        0,
        fresh=fresh,
        endings=endings,
        ledger=ledger.state,
        groups=groups_config(**groups),
        freshness=freshness_config(**(freshness or {})),
    )


def at_version(version: int, alpha: float = 1.0) -> LedgerBuilder:
    ledger = LedgerBuilder(alpha=alpha)
    for _ in range(version):
        ledger.step()
    return ledger


def test_the_example_of_the_docstring() -> None:
    group = facts(
        at_version(3),
        a_header(0, 2, offset=10, version=1),
        a_header(0, 1, offset=11, version=3),
        a_header(0, 1, offset=12, version=3),
        a_header(0, 0, offset=13, status=Status.FAILED, segments=(), first_version=None),
        a_header(0, 0, offset=14, version=2),
        redundant_replicas=1,
    )
    assert [header.offset for header in group.members] == [11, 14]
    assert group.is_complete
    assert group.tallies == {2: ReplicaTally(num_stale=1), 0: ReplicaTally(num_failed=1)}
    assert not group.is_protected
    assert group.refused_as is None


def test_the_order_in_which_samples_are_named_changes_nothing() -> None:
    headers = [a_header(0, replica, offset=9 - replica) for replica in range(3)]
    forward, backward = (
        facts(LedgerBuilder(), *each, redundant_replicas=1) for each in (headers, headers[::-1])
    )
    assert forward == backward
    assert [header.replica for header in forward.members] == [2, 1]
    assert forward.fresh_replicas == {0, 1, 2}


def test_a_group_with_fewer_than_g_fresh_replicas_is_neither_complete_nor_refused() -> None:
    group = facts(LedgerBuilder(), a_header(0, 0, offset=0, reward=1.0), a_header(0, 0, offset=1, reward=1.0))
    assert not group.is_complete
    assert group.refused_as is None


def test_a_complete_group_says_which_filter_refuses_it() -> None:
    same = [a_header(0, replica, offset=replica, reward=1.0) for replica in range(2)]
    assert facts(LedgerBuilder(), *same).refused_as == "zero_signal"


@pytest.mark.parametrize(
    ("changes", "tally"),
    [
        ({"status": Status.FAILED}, ReplicaTally(num_failed=1)),
        ({"status": Status.LOST}, ReplicaTally(num_lost=1)),
        ({"status": Status.LOST, "defect": "wrong"}, ReplicaTally(num_failed=1)),
        ({"status": Status.CANCELLED, "cancel_reason": CancelReason.STALE.value}, ReplicaTally(num_stale=1)),
        ({"status": Status.CANCELLED, "cancel_reason": CancelReason.SURPLUS.value}, ReplicaTally()),
        ({"segments": (a_segment(7),)}, ReplicaTally(num_stale=1)),
    ],
)
def test_attempts_that_do_not_count_are_tallied_by_how_they_end(
    changes: dict[str, Any], tally: ReplicaTally
) -> None:
    group = facts(LedgerBuilder(), a_header(0, 1, offset=0, **changes))
    assert (group.members, group.tallies) == ((), {1: tally})


def test_verdicts_in_the_ledger_and_endings_since_are_added_and_the_ledger_keeps_its_own() -> None:
    ledger = LedgerBuilder()
    lost = a_header(0, 1, offset=0, status=Status.LOST)
    ledger.verdicts([verdict_of(lost, Disposition.LOST, version=0)])
    again = a_header(0, 1, offset=1, status=Status.LOST)
    assert facts(ledger, again).tallies == {1: ReplicaTally(num_lost=2)}
    assert ledger.state.tallies[0][1] == ReplicaTally(num_lost=1)


def test_a_group_is_protected_after_as_many_stale_verdicts_as_configured() -> None:
    ledger = LedgerBuilder(alpha=0.0)
    for offset, expected in enumerate((False, True)):
        stale = a_header(0, 0, offset=offset)
        ledger.verdicts([verdict_of(stale, Disposition.STALE, version=0)])
        assert facts(ledger, freshness={"protect_after": 2}).is_protected is expected


def test_what_the_ledger_trained_or_closed_decides_about_samples_that_come_later() -> None:
    ledger = LedgerBuilder()
    trained = verdict_of(a_header(0, 0, offset=0), Disposition.TRAINED, version=0)
    ledger.step([trained], [ClosedGroup(group_id=0, outcome=Disposition.TRAINED)])
    assert current_verdict(a_header(0, 0, offset=1), ledger.state) == (Disposition.DUPLICATE, "")
    assert current_verdict(a_header(0, 1, offset=2), ledger.state) == (Disposition.REDUNDANT, "group_closed")
