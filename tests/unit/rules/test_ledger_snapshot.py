"""The fold of the ledger as plain data, and what it keeps of closed groups."""

from __future__ import annotations

import json
import zlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.builders import LedgerBuilder, a_header

from rollog.kernel.errors import LedgerError
from rollog.rules.group_outcomes import GroupOutcomes
from rollog.rules.ledger_snapshot import ledger_from_plain, ledger_to_plain
from rollog.rules.ledger_state import LedgerState, record_hash
from schemas import ClosedGroup, Disposition
from schemas.codec import encode
from trainer.buffer.verdicts import verdict_of

groups = st.integers(-1, 3) | st.integers(4090, 4100) | st.integers(0, 1 << 40)


@given(
    events=st.lists(
        st.tuples(groups, st.integers(0, 70) | st.none(), st.sampled_from(list(Disposition))), max_size=40
    )
)
def test_what_is_known_of_groups_is_what_a_mapping_would_hold(
    events: list[tuple[int, int | None, Disposition]],
) -> None:
    outcomes = GroupOutcomes()
    closed: dict[int, Disposition] = {}
    trained: set[tuple[int, int]] = set()
    for group, replica, outcome in events:
        if replica is not None:
            outcomes.train(group, replica)
            trained.add((group, replica))
        elif group not in closed:
            outcomes.close(group, outcome)
            closed[group] = outcome
    for known in (outcomes, GroupOutcomes.from_plain(json.loads(json.dumps(outcomes.to_plain())))):
        assert known == outcomes
        assert list(known) == sorted(closed)
        assert len(known) == len(closed)
        assert all((ending := known.ending(group)) and ending[0] is closed[group] for group in closed)
        assert all(known.is_trained(*member) for member in trained)
        assert not known.is_trained(0, 71)
        assert not known.is_trained(0, -1)
        assert known.latest(3) == sorted(closed, reverse=True)[:3]


def test_outcomes_differ_by_what_was_trained_and_how_groups_were_closed() -> None:
    one, other = GroupOutcomes(), GroupOutcomes()
    one.close(3, Disposition.TRAINED)
    other.close(3, Disposition.FILTERED)
    assert one != other
    other = GroupOutcomes()
    other.train(3, 0)
    other.close(3, Disposition.TRAINED)
    assert one != other
    assert one != {3: Disposition.TRAINED}


def a_long_ledger() -> LedgerBuilder:
    ledger = LedgerBuilder()
    ledger.amend('{"run.num_steps": 7}')
    for group in range(3):
        place = {"offset": group, "partition": 0}
        ledger.step(
            [
                verdict_of(a_header(group, 0, **place), Disposition.TRAINED, version=group),
                verdict_of(
                    a_header(group + 9, 1, offset=group, partition=1), Disposition.STALE, version=group
                ),
            ],
            [ClosedGroup(group_id=group, outcome=Disposition.TRAINED)],
            marks=(group + 1, 0, 0, 0),
            revision=1,
        )
    ledger.verdicts(
        [
            verdict_of(
                a_header(20, 0, offset=9, partition=2), Disposition.FILTERED, version=3, reason="signal"
            )
        ],
        [ClosedGroup(group_id=20, outcome=Disposition.FILTERED)],
        marks=(3, 0, 0, 0),
    )
    return ledger


def test_a_ledger_that_was_plain_data_goes_on_as_if_nothing_had_been() -> None:
    ledger = a_long_ledger()
    whole = LedgerState()
    for number, record in enumerate(ledger.records):
        whole.apply(record, record_hash(encode(record)))
        if not number:
            continue
        rest = ledger_from_plain(json.loads(json.dumps(ledger_to_plain(whole))))
        assert rest == whole
        for later in ledger.records[number + 1 :]:
            rest.apply(later, record_hash(encode(later)))
        assert rest == ledger.state


def test_what_was_trained_before_a_snapshot_is_refused_after_it() -> None:
    ledger = a_long_ledger()
    ledger.state = ledger_from_plain(ledger_to_plain(ledger.state))
    with pytest.raises(LedgerError, match="trained twice"):
        ledger.step(
            [verdict_of(a_header(1, 0, offset=30), Disposition.TRAINED, version=3)],
            marks=(3, 0, 0, 0),
            revision=1,
        )
    with pytest.raises(LedgerError, match="closed twice"):
        ledger.verdicts([], [ClosedGroup(group_id=20, outcome=Disposition.FILTERED)], marks=(3, 0, 0, 0))


def test_a_replica_that_no_group_can_have_is_refused() -> None:
    ledger = LedgerBuilder()
    with pytest.raises(LedgerError, match="no group has such a replica"):
        ledger.step([verdict_of(a_header(0, 1 << 20, offset=0), Disposition.TRAINED, version=0)])


@pytest.mark.parametrize(
    "changes",
    [
        {"weights": []},
        {"head": "x"},
        {"alpha": None},
        {"amendments": {}},
        {"disposed": [[1]]},
        {"num_by_disposition": {"splendid": 1}},
        {"closed_groups": {}},
    ],
)
def test_plain_data_that_is_no_ledger_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises((ValueError, TypeError, KeyError, zlib.error)):
        ledger_from_plain(ledger_to_plain(a_long_ledger().state) | changes)


@pytest.mark.parametrize("changes", [{"blocks": [0, 1]}, {"codes": "AAAA"}, {"endings": []}])
def test_plain_data_that_is_no_outcomes_is_refused(changes: dict[str, Any]) -> None:
    outcomes = GroupOutcomes()
    outcomes.close(5, Disposition.TRAINED)
    with pytest.raises((ValueError, zlib.error)):
        GroupOutcomes.from_plain(outcomes.to_plain() | changes)
