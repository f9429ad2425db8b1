"""Which reward counts for a sample, and what is kept."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.builders import a_sample, a_task

from rollog.rules.headers import SampleLimits, header_of
from rollog.rules.issued_tasks import IssuedTasks
from rollog.rules.late_rewards import (
    GivenReward,
    KeptRewards,
    RewardOutcome,
    attempt_named,
    kept_bytes,
    most_kept,
    most_reward_bytes,
    rewarded,
)
from schemas import Reward, SchemaError, uint8_array
from schemas.codec import encode

name = "g3.r0.a0"


def given_reward(offset: int, *, num_turns: int = 0, value: float = 1.0, of: str = name) -> GivenReward:
    reward = Reward(sample_id=of, reward=value, turn_rewards=(0.5,) * num_turns)
    return GivenReward.read(encode(reward), offset)


def test_the_first_reward_counts_and_a_second_one_is_doubled() -> None:
    kept = KeptRewards()
    assert kept.add(3, given_reward(0)) is RewardOutcome.KEPT
    assert kept.add(3, given_reward(1, value=2.0)) is RewardOutcome.DOUBLED
    found = kept.of(3, name, 1)
    assert found is not None
    assert found.reference.offset == 0


def test_the_example_of_the_docstring() -> None:
    kept = KeptRewards()
    outcomes = [kept.add(3, given_reward(offset, num_turns=num)) for offset, num in enumerate((2, 2, 0, 3))]
    assert outcomes == ["kept", "doubled", "kept", "doubled"]
    offsets = [found.reference.offset for turns in (2, 3) if (found := kept.of(3, name, turns)) is not None]
    assert offsets == [0, 2]


@given(st.lists(st.integers(0, 6), max_size=12), st.integers(1, 6))
def test_at_most_four_are_kept_and_the_first_that_fits_among_them_counts(
    nums: list[int], num_turns: int
) -> None:
    kept = KeptRewards()
    for offset, num in enumerate(nums):
        kept.add(3, given_reward(offset, num_turns=num))
    different = list(dict.fromkeys(nums))
    if 0 in different:
        different = different[: different.index(0) + 1]
    different = different[:most_kept]
    assert len(kept) == len(different)
    fitting = [num for num in different if num in (0, num_turns)]
    found = kept.of(3, name, num_turns)
    assert (found is None) == (not fitting)
    if found is not None:
        assert found.reference.offset == nums.index(fitting[0])


def test_a_new_reader_begins_at_the_first_reward_that_is_kept() -> None:
    kept = KeptRewards()
    kept.add(3, given_reward(5))
    kept.add(4, given_reward(7, of="g4.r0.a0"))
    assert kept.mark(9) == 5
    assert kept.mark(9, closing=[3]) == 7
    kept.forget([3, 4])
    assert kept.mark(9) == 9


@pytest.mark.parametrize(
    "text",
    ["", "g1", "g1.r2", "g-1.r0.a0", "g01.r0.a0", "g1.r0.a0 ", "g1.r0.a\u0661", "g" + "1" * 30 + ".r0.a0"],
)
def test_what_names_no_attempt_is_told(text: str) -> None:
    assert attempt_named(text) is None


def test_an_attempt_is_named_by_its_id() -> None:
    assert attempt_named("g12.r3.a1") == (12, 3, 1)


def test_a_finished_sample_may_wait_where_the_run_has_late_rewards() -> None:
    sample = a_sample(0, 0, reward=None, awaits_reward=True)

    def defect(*, late: bool, **changes: Any) -> str | None:
        limits = SampleLimits(num_partitions=4, num_replicas=2, temperature=1.0, has_late_rewards=late)
        read = a_sample(0, 0, **({"reward": None, "awaits_reward": True} | changes))
        return header_of(read, partition=0, offset=0, digest=bytes(16), limits=limits).defect

    assert sample.awaits_reward
    assert defect(late=True) is None
    assert defect(late=False) == "a finished sample with reward None"
    assert defect(late=True, awaits_reward=False) == "a finished sample with reward None"
    assert "its id is g0.r0.a0" in (defect(late=True, sample_id="g9.r0.a0") or "")


def test_the_header_of_a_waiting_sample_has_its_turns() -> None:
    limits = SampleLimits(num_partitions=4, num_replicas=2, temperature=1.0, has_late_rewards=True)
    sample = a_sample(0, 0, reward=None, awaits_reward=True, loss_mask=uint8_array([1, 0, 1]))
    header = header_of(sample, partition=0, offset=0, digest=bytes(16), limits=limits)
    assert (header.is_waiting, header.num_turns) == (True, 2)
    assert not header_of(
        a_sample(0, 0, awaits_reward=True), partition=0, offset=0, digest=bytes(16), limits=limits
    ).is_waiting


def test_a_sample_of_another_writer_may_not_wait() -> None:
    limits = SampleLimits(num_partitions=4, num_replicas=2, temperature=1.0, has_late_rewards=True)
    issued = IssuedTasks()
    issued.add(a_task(0), partition=0, offset=0)
    sample = a_sample(0, 0, reward=None, awaits_reward=True, worker_id="teacher")
    header = header_of(sample, partition=0, offset=0, digest=bytes(16), limits=limits)
    placed = issued.placed(header, sample, grants={}, newest_epoch=1, other_writers=frozenset({"teacher"}))
    assert (placed.group_id, placed.is_waiting) == (-1, False)
    assert "bring theirs" in (placed.defect or "")


def test_what_is_kept_of_a_group_is_bounded_and_behind_what_found_no_room_nothing_is_kept() -> None:
    kept = KeptRewards(kept_bytes(2))
    outcomes = [kept.add(3, given_reward(offset, of=f"g3.r0.a{offset}")) for offset in range(300)]
    num_kept = outcomes.count(RewardOutcome.KEPT)
    assert 200 < num_kept < 300
    assert set(outcomes[num_kept:]) == {RewardOutcome.CROWDED}
    assert len(kept) == num_kept
    # One that is there already is doubled, full or not; another group has room of its own.
    assert kept.add(3, given_reward(300, of="g3.r0.a0")) is RewardOutcome.DOUBLED
    assert kept.add(4, given_reward(301, of="g4.r0.a0")) is RewardOutcome.KEPT
    kept.forget([3])
    assert kept.add(3, given_reward(302)) is RewardOutcome.KEPT


def test_a_small_reward_does_not_slip_in_behind_a_large_one_that_found_no_room() -> None:
    kept = KeptRewards(kept_bytes(1))
    large = [given_reward(offset, num_turns=6000, of=f"g3.r0.a{offset}") for offset in range(3)]
    assert [kept.add(3, given) for given in large] == ["kept", "kept", "crowded"]
    assert kept.add(3, given_reward(3)) is RewardOutcome.CROWDED


def test_every_group_has_room_for_one_reward_of_any_size() -> None:
    largest = given_reward(0, num_turns=(most_reward_bytes - 50) // 8)
    assert len(largest.value) > most_reward_bytes - 100
    assert KeptRewards(kept_bytes(1)).add(3, largest) is RewardOutcome.KEPT
    with pytest.raises(SchemaError, match="a reward has 65536 at most"):
        given_reward(0, num_turns=most_reward_bytes // 8)


def test_a_rewarded_sample_is_as_if_it_had_brought_its_reward() -> None:
    reward = Reward(sample_id="g0.r0.a0", reward=2.0, components={"passed": 1.0}, turn_rewards=(2.0,))
    sample = rewarded(a_sample(0, 0, reward=None, awaits_reward=True), reward)
    assert (sample.reward, sample.reward_components, sample.turn_rewards) == (2.0, {"passed": 1.0}, (2.0,))
