"""The played protocol, against cases computed by hand, and what no rule lets it do."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollog.planning.protocol_simulation import GroupRules, ProtocolRun, step_ends, step_seconds


def ends(
    durations: list[list[float]], num_ends: int, *, rules: GroupRules | None = None, **changes: float
) -> list[float]:
    values: dict[str, float] = {
        "groups_per_batch": 1,
        "group_size": 1,
        "alpha": 1.0,
        "num_slots": 1,
        "train_seconds": 2.0,
    }
    run = ProtocolRun(rules=rules or GroupRules(), **(values | changes))  # type: ignore[arg-type]  # whole numbers
    return step_ends(durations, run, num_ends)


def test_synchronous_steps_generate_and_train_in_turn() -> None:
    assert ends([[1.0]], 3, alpha=0.0) == [3.0, 6.0, 9.0]


def test_asynchronous_steps_take_the_longer_of_the_two() -> None:
    assert ends([[1.0]], 3) == [3.0, 5.0, 7.0]
    assert ends([[3.0]], 3) == [5.0, 8.0, 11.0]


def test_rollouts_of_a_batch_share_the_slots() -> None:
    # Two slots make four rollouts of 2 s in 4 s.
    assert ends([[2.0]], 2, alpha=0.0, groups_per_batch=2, group_size=2, num_slots=2) == [6.0, 12.0]


def test_no_more_groups_are_open_than_alpha_admits() -> None:
    # One of two groups may be open ahead: 1.5 x 2 = 3 on four slots, so a step waits for one more rollout of 4 s.
    assert ends([[4.0]], 2, alpha=0.5, groups_per_batch=2, num_slots=4, train_seconds=1.0) == [5.0, 9.0 + 1.0]


def test_a_group_that_went_stale_is_made_again_and_waited_for() -> None:
    # Group 0, begun under version 0, can only end stale from version 2 on: it is taken back at 4 and made again until
    # 9. Version 3 may still be made at 6, version 4 waits for it.
    durations = [[5.0], *([[1.0]] * 20)]
    assert ends(durations, 4, num_slots=2, train_seconds=1.0) == [2.0, 4.0, 6.0, 10.0]


def test_without_protection_nothing_waits_for_it() -> None:
    durations = [[5.0], *([[1.0]] * 20)]
    unprotected = GroupRules(protect_after=1 << 30)
    assert ends(durations, 4, num_slots=2, train_seconds=1.0, rules=unprotected) == [2.0, 4.0, 6.0, 8.0]


def test_the_first_members_to_end_make_a_group_and_the_slots_of_the_others_are_free_at_once() -> None:
    redundant = GroupRules(redundant_replicas=1)
    # The second replica needs 1 s, the first 9 s: every second the one is done and the other cancelled.
    assert ends([[9.0, 1.0]], 3, alpha=0.0, num_slots=2, rules=redundant) == [3.0, 6.0, 9.0]


def test_a_filtered_group_is_replaced_as_soon_as_it_is_complete() -> None:
    half = GroupRules(pass_share=0.5)
    assert ends([[1.0]], 2, alpha=0.0, rules=half) == [4.0, 8.0]


def test_redundant_groups_are_open_besides() -> None:
    # Of two open groups the shorter one is trained.
    durations = [[9.0], [1.0], [1.0], [1.0]]
    assert ends(durations, 1, alpha=0.0, num_slots=2) == [11.0]
    assert ends(durations, 1, alpha=0.0, num_slots=2, rules=GroupRules(redundant_groups=1)) == [3.0]


def test_a_rollout_that_is_scored_leaves_its_slot_to_the_next() -> None:
    # Two rollouts of 2 s, one after the other; the second has its reward at 2 + 2 + 5.
    assert ends([[2.0]], 1, alpha=0.0, groups_per_batch=2, score_seconds=5.0) == [11.0]
    # Four seconds of slot time a step on one slot: scoring costs the first step time, and no slot afterwards.
    assert ends([[2.0]], 3, alpha=4.0, score_seconds=3.0) == [7.0, 9.0, 11.0]


def test_what_is_scored_for_a_group_that_is_complete_frees_no_slot_twice() -> None:
    redundant = GroupRules(redundant_replicas=1)
    # The second replica ends at 1 and is scored at 5; the first generates until 4 and is then scored, too.
    assert ends([[4.0, 1.0]], 2, alpha=0.0, num_slots=2, rules=redundant, score_seconds=4.0) == [7.0, 14.0]
    assert ends([[4.0, 1.0]], 2, alpha=0.0, rules=redundant, score_seconds=4.0) == [10.0, 20.0]


def test_a_rollout_that_needs_new_weights_waits_until_its_worker_serves_them() -> None:
    # Without lag allowed every rollout waits 5 s for the version before.
    assert ends([[1.0]], 3, alpha=0.0, weights_seconds=5.0) == [3.0, 11.0, 19.0]
    # With alpha 1 it begins under the version before and is not held up.
    assert ends([[1.0]], 3, weights_seconds=1.0) == [3.0, 5.0, 7.0]


def test_weights_that_arrive_late_make_rollouts_older() -> None:
    # Version 1 is served from 3 + 3 on; what begins before is of version 0 and stale at version 2.
    late = ends([[1.0]], 12, weights_seconds=3.0)
    assert late[-1] > ends([[1.0]], 12)[-1]


def test_towards_the_end_of_a_run_only_what_it_still_needs_is_opened() -> None:
    durations = [[1.0], [9.0], [1.0], [1.0]]
    assert ends(durations, 2, num_slots=2, train_seconds=1.0) == [2.0, 4.0]
    # The second and last step takes the group that is open already, however long it is.
    assert ends(durations, 2, num_slots=2, train_seconds=1.0, num_steps=2) == [2.0, 10.0]


@given(
    st.lists(st.lists(st.floats(0.1, 50), min_size=1, max_size=3), min_size=1, max_size=12),
    st.sampled_from([0.0, 0.25, 0.5, 1.0, 1.5, 2.0, 8.0]),
    st.integers(1, 6),
    st.integers(0, 2),
)
def test_every_run_goes_on_and_no_step_is_shorter_than_its_training(
    durations: list[list[float]], alpha: float, num_slots: int, redundant: int
) -> None:
    found = ends(
        durations,
        12,
        rules=GroupRules(redundant_replicas=redundant, redundant_groups=redundant),
        alpha=alpha,
        groups_per_batch=2,
        group_size=2,
        num_slots=num_slots,
        train_seconds=0.5,
    )
    steps = [later - earlier for earlier, later in zip([0.0, *found], found, strict=False)]
    assert len(found) == 12
    assert min(steps) >= 0.5 - 1e-9
    shortest = min(min(group) for group in durations)
    assert found[-1] >= 12 * 4 * shortest / num_slots


def test_the_mean_leaves_the_first_steps_out() -> None:
    run = ProtocolRun(
        rules=GroupRules(), groups_per_batch=1, group_size=1, alpha=1.0, num_slots=1, train_seconds=2.0
    )
    assert step_seconds([[1.0]], run, num_warm_up=1, num_measured=4) == 2.0
    assert step_seconds([[1.0]], run, num_warm_up=0, num_measured=2) == 2.5


@pytest.mark.parametrize("durations", [[], [[1.0], []]])
def test_without_durations_nothing_is_played(durations: list[list[float]]) -> None:
    with pytest.raises(ValueError, match="at least one rollout"):
        ends(durations, 1)
