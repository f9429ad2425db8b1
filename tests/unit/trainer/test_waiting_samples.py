"""Samples that wait for their reward in the buffer, driven by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from support.builders import LedgerBuilder, a_header, freshness_config, groups_config

from rollog.rules.late_rewards import GivenReward, RewardOutcome
from schemas import Disposition, Reward, Status, sample_id
from schemas.codec import encode
from trainer.buffer.reward_waits import RewardWaits
from trainer.buffer.sample_buffer import SampleBuffer

if TYPE_CHECKING:
    from rollog.rules.headers import SampleHeader
    from schemas import LedgerRecord

deadline_seconds = 60.0


def a_buffer(ledger: LedgerBuilder, *, action: str = "regenerate", **groups: Any) -> SampleBuffer:
    return SampleBuffer(
        ledger.state,
        groups_config(**({"groups_per_batch": 1} | groups)),
        freshness_config(action=action),
        RewardWaits(deadline_seconds),
    )


def waiting(group: int, replica: int, *, offset: int, attempt: int = 0, **changes: Any) -> SampleHeader:
    name = sample_id(group, replica, attempt)
    values = {"reward": None, "num_turns": 1, "sample_id": name, "attempt": attempt}
    return a_header(group, replica, offset=offset, **(values | changes))


def reward_of(
    group: int, replica: int, *, offset: int, value: float | None = None, num_turns: int = 0, attempt: int = 0
) -> GivenReward:
    reward = Reward(
        sample_id=sample_id(group, replica, attempt),
        reward=float(replica) if value is None else value,
        turn_rewards=(1.0,) * num_turns,
    )
    return GivenReward.read(encode(reward), offset)


def dispositions(record: LedgerRecord) -> dict[tuple[int, int], Disposition]:
    return {(verdict.replica, verdict.offset): verdict.disposition for verdict in record.verdicts}


def is_given_up(buffer: SampleBuffer) -> bool:
    """Whether the next ledger record says `unrewarded` of a sample."""
    return buffer.has_unrewarded


def test_a_sample_is_no_candidate_until_its_reward_is_there_and_the_verdict_names_it() -> None:
    ledger = LedgerBuilder()
    buffer = a_buffer(ledger)
    for replica in range(2):
        buffer.add(waiting(0, replica, offset=replica))
    assert buffer.next_batch(0.0) is None
    assert not buffer.has_pending
    assert buffer.lacking([0]) == [(0, 2)]
    assert [buffer.give(0, reward_of(0, replica, offset=replica)) for replica in (1, 0)] == [
        RewardOutcome.GIVEN
    ] * 2
    batch = buffer.next_batch(0.0)
    assert batch is not None
    assert [header.reward for header in batch[0].members] == [0.0, 1.0]
    record = ledger.publish(buffer, batch)
    assert [verdict.late_reward and verdict.late_reward.offset for verdict in record.verdicts] == [0, 1]
    assert len(buffer.waits.kept) == 0


def test_a_reward_before_its_sample_counts_and_one_behind_it_is_doubled() -> None:
    buffer = a_buffer(LedgerBuilder())
    assert buffer.give(0, reward_of(0, 0, offset=0, value=5.0)) is RewardOutcome.KEPT
    assert buffer.give(0, reward_of(0, 0, offset=1, value=6.0)) is RewardOutcome.DOUBLED
    buffer.add(waiting(0, 0, offset=0))
    assert buffer.give(0, reward_of(0, 0, offset=2, value=7.0)) is RewardOutcome.DOUBLED
    buffer.add(waiting(0, 1, offset=1))
    buffer.give(0, reward_of(0, 1, offset=3))
    batch = buffer.next_batch(0.0)
    assert batch is not None
    assert [header.reward for header in batch[0].members] == [5.0, 1.0]


def test_a_reward_for_another_number_of_turns_is_passed_over() -> None:
    buffer = a_buffer(LedgerBuilder())
    buffer.add(waiting(0, 0, offset=0, num_turns=2))
    assert buffer.give(0, reward_of(0, 0, offset=0, num_turns=3)) is RewardOutcome.MISFIT
    assert buffer.give(0, reward_of(0, 0, offset=1, num_turns=2)) is RewardOutcome.GIVEN


def test_a_reward_that_a_sample_brings_wins() -> None:
    ledger = LedgerBuilder()
    buffer = a_buffer(ledger)
    buffer.give(0, reward_of(0, 0, offset=0, value=9.0))
    buffer.add(a_header(0, 0, offset=0, reward=0.25))
    buffer.add(a_header(0, 1, offset=1))
    batch = buffer.next_batch(0.0)
    assert batch is not None
    record = ledger.publish(buffer, batch)
    assert batch[0].members[0].reward == 0.25
    assert record.verdicts[0].late_reward is None


def test_after_the_deadline_a_sample_is_unrewarded_and_counts_as_an_attempt() -> None:
    ledger = LedgerBuilder()
    buffer = a_buffer(ledger, max_attempts=2)
    for attempt in range(2):
        buffer.add(waiting(0, 0, offset=attempt, attempt=attempt))
        buffer.waits.look(100.0 * attempt)
        buffer.end_waits(100.0 * attempt + deadline_seconds - 1.0)
        assert not is_given_up(buffer)
        buffer.end_waits(100.0 * attempt + deadline_seconds)
        assert is_given_up(buffer)
        assert buffer.frees_replicas is (attempt == 0)
        record = ledger.publish(buffer)
        assert dispositions(record) == {(0, attempt): Disposition.UNREWARDED}
        assert record.verdicts[0].reason == "no_reward"
    outcomes = [group.outcome for record in ledger.records for group in record.closed_groups]
    assert outcomes == [Disposition.INCOMPLETE]


def test_a_replica_whose_attempts_are_used_up_does_not_close_its_group_while_one_waits() -> None:
    ledger = LedgerBuilder()
    buffer = a_buffer(ledger, max_attempts=1)
    buffer.add(a_header(0, 0, offset=0, status=Status.FAILED, reward=None, segments=(), first_version=None))
    buffer.add(waiting(0, 0, offset=1))
    assert ledger.publish(buffer).closed_groups == ()


def test_a_waiting_sample_goes_stale_like_any_other() -> None:
    ledger = LedgerBuilder()
    buffer = a_buffer(ledger)
    buffer.add(waiting(0, 0, offset=0))
    for _ in range(2):
        record = ledger.step()
        buffer.committed(record)
    assert dispositions(ledger.publish(buffer)) == {(0, 0): Disposition.STALE}


@pytest.mark.parametrize(("replica", "disposition"), [(0, Disposition.DUPLICATE), (2, Disposition.REDUNDANT)])
def test_what_waits_in_a_group_that_is_trained_is_disposed_of_with_it(
    replica: int, disposition: Disposition
) -> None:
    ledger = LedgerBuilder()
    buffer = a_buffer(ledger, redundant_replicas=1)
    for number in range(2):
        buffer.add(a_header(0, number, offset=number))
    buffer.add(waiting(0, replica, offset=5, attempt=1))
    batch = buffer.next_batch(0.0)
    assert batch is not None
    assert dispositions(ledger.publish(buffer, batch))[(replica, 5)] is disposition
    assert buffer.give(0, reward_of(0, replica, offset=0, attempt=1)) is RewardOutcome.LATE


def test_a_filtered_group_names_the_rewards_it_is_filtered_for() -> None:
    ledger = LedgerBuilder()
    buffer = a_buffer(ledger)
    for replica in range(2):
        buffer.add(waiting(0, replica, offset=replica))
        buffer.give(0, reward_of(0, replica, offset=replica, value=1.0))
    record = ledger.publish(buffer)
    assert set(dispositions(record).values()) == {Disposition.FILTERED}
    assert all(verdict.late_reward is not None for verdict in record.verdicts)


def test_at_the_close_what_waits_is_incomplete() -> None:
    ledger = LedgerBuilder()
    buffer = a_buffer(ledger)
    buffer.add(waiting(0, 0, offset=0))
    buffer.close_all()
    assert dispositions(ledger.publish(buffer)) == {(0, 0): Disposition.INCOMPLETE}


def test_a_protected_group_whose_sample_waits_holds_training_up() -> None:
    ledger = LedgerBuilder()
    buffer = a_buffer(ledger)
    buffer.add(a_header(0, 0, offset=0))
    for _ in range(2):
        buffer.committed(ledger.step())
    assert dispositions(ledger.publish(buffer)) == {(0, 0): Disposition.STALE}
    buffer.committed(ledger.step())
    buffer.add(waiting(0, 0, offset=1, attempt=1, version=2))
    for replica in range(2):
        buffer.add(a_header(1, replica, offset=replica, version=3))
    assert buffer.next_batch(0.0) is None
    assert set(buffer.holding) == {0}
