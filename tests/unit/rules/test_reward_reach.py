"""Up to which group rewards count, and that whoever reads them again comes to the same."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from hypothesis import given, settings
from hypothesis import strategies as st
from support.builders import LedgerBuilder, groups_config

from consumers.audit.config import AuditConfig
from consumers.audit.reward_reach import ReadingOfRewards, RoomOfGroups
from rollog.rules.admission import max_open_groups
from rollog.rules.late_rewards import GivenReward, KeptRewards, RewardOutcome, kept_bytes
from rollog.rules.reward_reach import Reached, RewardReach
from schemas import ClosedGroup, Disposition, LedgerKind, LedgerRecord, Reward
from schemas.codec import encode

if TYPE_CHECKING:
    from collections.abc import Sequence

config = AuditConfig(groups_per_batch=2, group_size=2, redundant_replicas=0, redundant_groups=1)
groups = groups_config(groups_per_batch=2, redundant_groups=1)


def a_record(position: int, mark: int, closed: Sequence[int] = (), alpha: float = 1.0) -> LedgerRecord:
    return LedgerRecord(
        kind=LedgerKind.VERDICTS,
        sequence=1,
        version=0,
        alpha=alpha,
        previous_hash=bytes(32),
        low_water_marks=(0,),
        closed_groups=tuple(
            ClosedGroup(group_id=group, outcome=Disposition.FILTERED, protected_waits=0) for group in closed
        ),
        reward_position=position,
        reward_mark=mark,
    )


def test_the_example_of_the_docstring() -> None:
    assert Reached(0, 42, 1).end(groups_config(groups_per_batch=8)) == 106


def test_what_is_behind_the_position_of_a_record_is_read_when_that_is_there() -> None:
    reach = RewardReach()
    reach.add(a_record(0, 0))
    reach.add(a_record(10, 0, closed=[0, 3]))
    reach.add(a_record(10, 0, closed=[1], alpha=2.5))
    reach.add(a_record(12, 0, alpha=0.0))
    assert [reach.at(offset).next_group for offset in (0, 9, 10, 12, 99)] == [0, 0, 4, 4, 4]
    assert [reach.at(offset).most_alpha for offset in (0, 9, 10, 12, 99)] == [1, 1, 3, 3, 3]


def test_what_stands_before_the_mark_is_forgotten() -> None:
    reach = RewardReach()
    for group in range(1000):
        reach.add(a_record(10 * group, max(0, 10 * group - 35), closed=[group]))
    assert len(reach.to_plain()) <= 6
    assert reach.at(9990).next_group == 1000


steps = st.lists(
    st.tuples(st.integers(0, 3), st.integers(0, 3), st.booleans(), st.sampled_from([0.0, 0.5, 1.0, 2.5])),
    min_size=1,
    max_size=30,
)


@given(steps)
def test_the_audit_and_a_trainer_that_starts_anew_see_the_same_reach(
    history: list[tuple[int, int, bool, float]],
) -> None:
    reach, audited = RewardReach(), ReadingOfRewards()
    position, mark, group = 0, 0, 0
    first_said: dict[int, int] = {}
    for num_read, behind, closes, alpha in history:
        for offset in range(position, position + num_read):
            first_said[offset] = reach.at(offset).end(groups)
        position += num_read
        mark = max(mark, position - behind)
        record = a_record(position, mark, [group] if closes else [], alpha)
        group += closes
        reach.add(record)
        audited.add(record)
        again = RewardReach.from_plain(json.loads(json.dumps(reach.to_plain())))
        assert again == reach
        for offset in range(mark, position):
            assert again.at(offset).end(groups) == first_said[offset]
    for offset, end in first_said.items():
        if audited.entry(offset) >= 0:
            assert audited.end_of_reach(offset, config) == end


@given(
    st.lists(st.tuples(st.booleans(), st.floats(0, 4)), max_size=30),
    st.integers(1, 5),
    st.integers(0, 3),
)
def test_no_group_that_a_dispatcher_opens_is_beyond_reach(
    history: list[tuple[bool, float]], batch: int, redundant: int
) -> None:
    ledger, wanted = LedgerBuilder(), groups_config(groups_per_batch=batch, redundant_groups=redundant)
    next_group, still_open = 0, list[int]()
    for closes, alpha in history:
        most = max_open_groups(
            alpha=ledger.state.alpha,
            groups_per_batch=batch,
            steps_left=1000,
            redundant_groups=redundant,
            num_early_filtered=1000,
        )
        while len(still_open) < most:
            still_open.append(next_group)
            next_group += 1
        assert next_group <= ledger.state.reward_reach.at(0).end(wanted)
        closed = [still_open.pop()] if closes else []
        ended = [
            ClosedGroup(group_id=group, outcome=Disposition.FILTERED, protected_waits=0) for group in closed
        ]
        ledger.step(closed=ended, alpha=alpha)


@given(
    st.lists(
        st.tuples(st.integers(0, 1), st.integers(0, 60), st.sampled_from([0, 10, 3000, 7000])),
        min_size=5,
        max_size=40,
    )
)
@settings(max_examples=40)
def test_the_audit_has_room_for_what_the_trainer_has_room_for(rewards: list[tuple[int, int, int]]) -> None:
    kept, room = KeptRewards(kept_bytes(2)), RoomOfGroups()
    for offset, (group, attempt, num_turns) in enumerate(rewards):
        name = f"g{group}.r0.a{attempt}.{offset}"
        value = encode(Reward(sample_id=name, reward=1.0, turn_rewards=(0.5,) * num_turns))
        is_kept = kept.add(group, GivenReward.read(value, offset)) is RewardOutcome.KEPT
        assert room.takes(group, value, 2) == is_kept
