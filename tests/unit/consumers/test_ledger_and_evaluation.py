"""Reading the ledger, and scores from evaluations."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from support.builders import LedgerBuilder, a_sample, a_segment

from consumers.evaluation import EvaluationTally
from consumers.ledger import StoredLedger, read_ledger
from rollog.kernel.broker.ports import TopicSpec
from schemas import Kind, Status
from schemas.codec import encode

if TYPE_CHECKING:
    from rollog.kernel.broker.memory import MemoryBroker
    from rollog.kernel.broker.topics import RunTopics
    from schemas import Sample


def written(broker: MemoryBroker, topics: RunTopics, *values: bytes | None) -> MemoryBroker:
    with broker.admin() as admin:
        admin.create_topics([TopicSpec(name=topics.steps, num_partitions=1)])
    with broker.transactional_producer("trainer") as producer:
        for value in values:
            producer.begin()
            producer.send(topics.steps, 0, value, key=b"k")
            producer.commit(1.0)
    return broker


def test_the_whole_ledger_is_read_past_transaction_markers(
    memory_broker: MemoryBroker, run_topics: RunTopics
) -> None:
    ledger = LedgerBuilder()
    ledger.step()
    broker = written(memory_broker, run_topics, *(encode(record) for record in ledger.records))
    entries = read_ledger(broker, run_topics)
    assert [entry.record for entry in entries] == ledger.records
    assert entries[-1].digest == ledger.state.head


def test_an_empty_ledger_is_empty(memory_broker: MemoryBroker, run_topics: RunTopics) -> None:
    assert read_ledger(written(memory_broker, run_topics), run_topics) == []


def test_a_ledger_that_is_gone_over_twice_shows_the_same_though_more_was_written(
    memory_broker: MemoryBroker, run_topics: RunTopics
) -> None:
    ledger = LedgerBuilder()
    ledger.step()
    broker = written(memory_broker, run_topics, *(encode(record) for record in ledger.records))
    stored = StoredLedger(broker, run_topics)
    entries = list(stored)
    ledger.step()
    written(broker, run_topics, encode(ledger.records[-1]))
    assert list(stored) == entries
    assert stored.first() == entries[0]
    assert stored.at(entries[-1].offset) == entries[-1]
    assert len(read_ledger(broker, run_topics)) == len(entries) + 1


def test_an_empty_ledger_has_no_first_record(memory_broker: MemoryBroker, run_topics: RunTopics) -> None:
    stored = StoredLedger(written(memory_broker, run_topics), run_topics)
    assert stored.first() is None
    assert list(stored) == []


@pytest.mark.parametrize(
    ("value", "complaint"), [(b"garbage", "not a ledger record"), (None, "has no value")]
)
def test_what_is_no_ledger_record_is_named_and_left_out(
    memory_broker: MemoryBroker,
    run_topics: RunTopics,
    caplog: pytest.LogCaptureFixture,
    value: bytes | None,
    complaint: str,
) -> None:
    builder = LedgerBuilder()
    builder.step()
    genesis, step = (encode(record) for record in builder.records)
    entries = read_ledger(written(memory_broker, run_topics, value, genesis, value, step), run_topics)
    assert [entry.record.sequence for entry in entries] == [0, 1]
    assert any(complaint in str(record.__dict__) for record in caplog.records)


def an_answer(prompt: int, reward: float | None, **changes: Any) -> Sample:
    values: dict[str, Any] = {
        "kind": Kind.EVALUATION,
        "evaluation": "greedy",
        "pinned_version": 0,
        "reward": reward,
    }
    return a_sample(prompt, **(values | changes))


def test_the_score_is_the_mean_over_prompts_and_a_failed_prompt_counts_zero() -> None:
    tally = EvaluationTally()
    tally.add(an_answer(0, 1.0))
    tally.add(an_answer(1, 0.0))
    tally.add(an_answer(2, None, status=Status.FAILED))
    tally.add(an_answer(3, None, status=Status.FAILED))
    tally.add(an_answer(3, 1.0, attempt=1))
    score = tally.score("greedy", 0)
    assert score is not None
    assert (score.mean_reward, score.num_prompts, score.num_failed) == (0.5, 4, 1)


def test_samples_that_prove_nothing_about_the_version_are_left_out() -> None:
    tally = EvaluationTally()
    tally.add(a_sample(0, reward=1.0))
    tally.add(an_answer(0, 1.0, segments=(a_segment(version=1),)))
    tally.add(an_answer(0, None, status=Status.EXPIRED))
    assert tally.score("greedy", 0) is None
    assert tally.scores() == {}


def test_a_game_counts_with_the_mean_of_its_seats_and_each_seat_has_a_score_of_its_own() -> None:
    tally = EvaluationTally(num_seats=2)
    for game, rewards in enumerate([(1.0, -1.0), (0.5, 0.0), (-1.0, 1.0)]):
        for seat, reward in enumerate(rewards):
            tally.add(an_answer(game, reward, replica=seat))
    score = tally.score("greedy", 0)
    assert score is not None
    assert score.mean_reward == pytest.approx((0.0 + 0.25 + 0.0) / 3)
    assert score.seat_rewards == {0: pytest.approx(0.5 / 3), 1: 0.0}
    assert (score.num_prompts, score.num_failed, score.num_rollouts) == (3, 0, 6)


def test_a_seat_that_only_failed_counts_zero_and_a_game_that_lacks_one_does_not_count() -> None:
    """Where one seat wins what the other loses, half a game says who was heard of and not who plays well."""
    tally = EvaluationTally(num_seats=2)
    tally.add(an_answer(0, 1.0))
    tally.add(an_answer(0, None, replica=1, status=Status.FAILED))
    for game in (1, 2, 3):
        tally.add(an_answer(game, 1.0))
    tally.add(an_answer(4, None, replica=1, status=Status.FAILED))
    score = tally.score("greedy", 0)
    assert score is not None
    assert (score.mean_reward, dict(score.seat_rewards)) == (0.5, {0: 1.0, 1: 0.0})
    assert (score.num_prompts, score.num_incomplete, score.num_failed, score.num_rollouts) == (1, 4, 1, 6)


def test_without_a_complete_game_there_is_no_score() -> None:
    tally = EvaluationTally(num_seats=2)
    tally.add(an_answer(0, 1.0))
    tally.add(an_answer(1, 1.0, replica=1))
    assert tally.score("greedy", 0) is None
    assert tally.scores() == {}
    tally.add(an_answer(1, 0.0))
    assert {key: score.mean_reward for key, score in tally.scores().items()} == {("greedy", 0): 0.5}


def test_what_names_a_seat_that_no_game_has_changes_no_score() -> None:
    tally = EvaluationTally()
    tally.add(an_answer(0, 1.0))
    tally.add(an_answer(0, 5.0, replica=999))
    tally.add(an_answer(1, None, replica=999, status=Status.FAILED))
    score = tally.score("greedy", 0)
    assert score is not None
    assert (score.mean_reward, score.num_prompts, score.num_incomplete, score.num_rollouts) == (1.0, 1, 0, 1)


def test_prompts_of_one_seat_have_no_scores_by_seat() -> None:
    tally = EvaluationTally()
    tally.add(an_answer(0, 1.0))
    score = tally.score("greedy", 0)
    assert score is not None
    assert score.seat_rewards == {}


def test_the_first_answer_to_a_prompt_counts() -> None:
    tally = EvaluationTally()
    tally.add(an_answer(0, 1.0))
    tally.add(an_answer(0, 0.0, attempt=1))
    assert {key: score.mean_reward for key, score in tally.scores().items()} == {("greedy", 0): 1.0}
