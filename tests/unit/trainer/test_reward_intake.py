"""Reading late rewards: marks, floods, dead letters, and what is known of the tasks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest
from support.builders import LedgerBuilder, a_header, freshness_config, groups_config

from producers.rewards.late import LateRewards
from rollog.kernel.broker.ports import TopicPartition
from rollog.kernel.broker.topics import OptionalTopic, RunTopics, topic_specs
from rollog.kernel.errors import TopicMismatch
from rollog.rules.late_rewards import KeptRewards, RewardOutcome
from rollog.settings.run import BrokerConfig
from schemas import Disposition, LedgerKind, LedgerRecord, Reward, SchemaError, Status, sample_id
from schemas.codec import encode
from trainer.buffer.reward_intake import LetterRate, RewardIntake, check_rewards_retained
from trainer.buffer.reward_waits import RewardWaits
from trainer.buffer.sample_buffer import SampleBuffer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rollog.kernel.broker.memory import MemoryBroker


@dataclass
class World:
    broker: MemoryBroker
    topics: RunTopics
    ledger: LedgerBuilder
    writer: LateRewards

    def intake(self) -> RewardIntake:
        groups = groups_config(groups_per_batch=1)
        self.buffer = SampleBuffer(
            self.ledger.state, groups, freshness_config(), RewardWaits(10.0, KeptRewards(1 << 17))
        )
        return RewardIntake(self.broker, self.topics.rewards, self.ledger.state, self.buffer, groups)

    def wait_for(self, replica: int, *, offset: int = 0) -> None:
        self.buffer.add(
            a_header(0, replica, offset=offset, reward=None, sample_id=sample_id(0, replica, 0), num_turns=1)
        )

    def raw(self, value: bytes) -> None:
        with self.broker.producer(client_id="raw") as producer:
            producer.send(self.topics.rewards, 0, value).offset(10.0)

    def publish(self, intake: RewardIntake) -> LedgerRecord:
        """A verdicts record, folded."""
        state = self.ledger.state
        verdicts, closed = self.buffer.verdicts_for()
        record = intake.marked(
            LedgerRecord(
                kind=LedgerKind.VERDICTS,
                sequence=state.next_sequence,
                version=state.version,
                alpha=state.alpha,
                previous_hash=state.head,
                low_water_marks=state.low_water_marks,
                verdicts=verdicts,
                closed_groups=closed,
            )
        )
        self.ledger.add(record)
        self.buffer.committed(record)
        intake.release()
        return record


@pytest.fixture
def world(memory_broker: MemoryBroker, run_topics: RunTopics) -> Iterator[World]:
    with memory_broker.admin() as admin:
        admin.create_topics(topic_specs(run_topics, BrokerConfig(), [OptionalTopic.REWARDS]))
    with LateRewards(memory_broker, run_topics, scorer="test") as writer:
        yield World(memory_broker, run_topics, LedgerBuilder(), writer)


def is_given_up(buffer: SampleBuffer) -> bool:
    """Whether the next ledger record says `unrewarded` of a sample."""
    return buffer.has_unrewarded


def test_a_new_trainer_reads_again_from_the_mark_what_samples_wait_for(world: World) -> None:
    world.writer.send("g0.r0.a0", 1.0)
    world.writer.send("g0.r1.a0", 2.0)
    with world.intake() as intake:
        intake.take_in(0.0)
        record = world.publish(intake)
    assert (record.reward_position, record.reward_mark) == (2, 0)
    with world.intake() as again:
        world.wait_for(1)
        again.take_in(0.0)
        assert [header.reward for header in world.buffer._fresh(0)] == [2.0]
        assert again.position == 2
        assert world.publish(again).reward_mark == 0


def test_a_reward_before_its_order_is_kept_and_what_was_beyond_reach_stays_so(world: World) -> None:
    # Alpha is 1 and a batch has one group, so reach ends with group 7, until groups are closed.
    world.writer.send("g7.r0.a0", 1.0)
    world.writer.send("g8.r0.a0", 2.0)
    with world.intake() as intake:
        intake.take_in(0.0)
        assert intake.num_by_outcome == {RewardOutcome.KEPT: 1, RewardOutcome.UNMATCHED: 1}
        for replica in range(2):
            world.buffer.add(a_header(0, replica, offset=replica, status=Status.FAILED))
        world.buffer._end_group(0, Disposition.INCOMPLETE, {}, "")
        record = world.publish(intake)
        assert [group.group_id for group in record.closed_groups] == [0]
        assert (record.reward_position, record.reward_mark) == (2, 0)
    world.writer.send("g8.r0.a0", 3.0)
    with world.intake() as again:
        again.take_in(1.0)
        assert again.num_by_outcome == {RewardOutcome.KEPT: 2, RewardOutcome.UNMATCHED: 1}
        found = world.buffer.waits.kept.of(8, "g8.r0.a0", 1)
        assert found is not None
        assert (found.reference.offset, found.reward) == (2, 3.0)


def test_a_flood_of_forged_names_is_bounded(world: World) -> None:
    with world.broker.producer(client_id="raw") as producer:
        for number in range(6000):
            name = f"g{number % 20}.r{number % 2}.a{number}"
            producer.send(world.topics.rewards, 0, encode(Reward(sample_id=name, reward=1.0)))
        producer.flush(10.0)
    with world.intake() as intake:
        for turn in range(5):
            intake.take_in(0.1 * turn)
        kept = intake.num_by_outcome[RewardOutcome.KEPT]
        assert intake.num_by_outcome == {
            RewardOutcome.KEPT: kept,
            RewardOutcome.CROWDED: 2400 - kept,
            RewardOutcome.UNMATCHED: 3600,
        }
        assert kept < 8 * 128


def test_what_is_of_no_use_is_counted(world: World) -> None:
    world.writer.send("g900.r0.a0", 1.0)
    world.writer.send("g0.r2.a0", 1.0)
    world.writer.send("somebody", 1.0)
    world.writer.send("g0.r0.a0", 1.0)
    world.writer.send("g0.r0.a0", 3.0)
    world.raw(b"rubbish")
    with world.intake() as intake:
        intake.take_in(0.0)
        assert intake.num_by_outcome == {
            RewardOutcome.UNMATCHED: 3,
            RewardOutcome.KEPT: 1,
            RewardOutcome.DOUBLED: 1,
            RewardOutcome.INVALID: 1,
        }
        (letter,) = intake.dead_letters
        assert (letter.topic, letter.offset, letter.value) == (world.topics.rewards, 5, b"rubbish")
        world.publish(intake)
        assert intake.dead_letters == []
    with world.intake() as again:
        again.take_in(0.0)
        assert again.dead_letters == []


def test_a_flood_of_rubbish_stops_nobody(world: World) -> None:
    with world.broker.producer(client_id="raw") as producer:
        for number in range(5000):
            producer.send(world.topics.rewards, 0, b"rubbish %d" % number)
        producer.flush(10.0)
    with world.intake() as intake:
        for turn in range(5):
            intake.take_in(0.1 * turn)
        assert intake.num_by_outcome == {RewardOutcome.INVALID: 5000}
        assert len(intake.dead_letters) == 100
        world.publish(intake)
        assert intake.dead_letters == []


def test_a_sample_is_given_up_only_behind_all_rewards_that_were_written_in_time(world: World) -> None:
    with world.intake() as intake:
        world.wait_for(0)
        intake.take_in(0.0)
        # The trainer was away for longer than the deadline, and the reward had come before it was over.
        world.writer.send("g0.r0.a0", 1.0)
        intake.take_in(100.0)
        assert not is_given_up(world.buffer)
        world.wait_for(1, offset=1)
        intake.take_in(101.0)
        intake.take_in(112.0)
        assert is_given_up(world.buffer)
        # A reward that comes now is behind the position at which it was given up.
        world.writer.send("g0.r1.a0", 1.0)
        intake.take_in(113.0)
        assert intake.marked(world.ledger.records[-1]).reward_position == 1
        world.publish(intake)
        intake.take_in(114.0)
        assert intake.position == 2


def test_dead_letters_are_written_at_a_limited_rate() -> None:
    rate = LetterRate(most=2, per_second=0.5, _left=2)
    assert [rate.takes(0.0) for _ in range(3)] == [True, True, False]
    assert [rate.takes(2.0), rate.takes(2.0)] == [True, False]


def test_rewards_that_a_new_trainer_needs_must_be_there(world: World) -> None:
    for _ in range(3):
        world.writer.send("g0.r0.a0", 1.0)
    world.writer.flush()
    with world.broker.admin() as admin:
        admin.delete_records({TopicPartition(world.topics.rewards, 0): 2})
    check_rewards_retained(world.broker, world.topics.rewards, 2)
    with pytest.raises(TopicMismatch, match="rewards from offset 1 to 1"):
        check_rewards_retained(world.broker, world.topics.rewards, 1)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_no_reward_is_written_that_is_no_number(world: World, value: float) -> None:
    with pytest.raises(SchemaError, match="not a finite number"):
        world.writer.send("g0.r0.a0", value)
    with pytest.raises(SchemaError, match=r"turn_rewards\[1\]"):
        world.writer.send("g0.r0.a0", 1.0, turn_rewards=(1.0, value))


def test_no_reward_is_written_that_every_reader_would_set_aside_as_too_large(world: World) -> None:
    with pytest.raises(SchemaError, match="a reward has 65536 at most"):
        world.writer.send("g0.r0.a0", 1.0, turn_rewards=(0.5,) * 9000)
    world.writer.send("g0.r0.a0", 1.0, turn_rewards=(0.5,) * 8000)
