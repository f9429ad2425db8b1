"""Sessions of an agent that wait for their rewards: real broker, processes of agents, transformers, DeepSpeed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest
from support.chat_models import saved_chat_model
from support.late_scorer import rewards_named
from support.threaded_run import small_settings, whole_run
from support.waiting import wait_until

from consumers.references import read_referenced
from producers.rewards.late import LateRewards
from rollog.kernel.broker.ports import TopicPartition
from rollog.kernel.payloads import PayloadStore
from rollog.kernel.weights import WeightsStore
from schemas import Disposition, Sample, Status, Step
from schemas.codec import decode_as

if TYPE_CHECKING:
    from pathlib import Path

    from support.threaded_run import WholeRun

    from rollog.kernel.broker.kafka import KafkaBroker
    from rollog.kernel.broker.ports import Consumer
    from rollog.kernel.broker.topics import RunTopics
    from rollog.settings.settings import Settings
    from schemas import LedgerRecord, Verdict

pytestmark = [pytest.mark.broker, pytest.mark.engine, pytest.mark.slow, pytest.mark.timeout(900)]

num_steps, groups_per_batch, group_size = 2, 2, 2
unscored = "g1.r0.a0"
deadline_seconds = 20.0
patience_seconds = 600.0


@dataclass
class OutsideScorer:
    """Reads finished sessions and rewards each, call by call; but for one, of which it never hears."""

    consumer: Consumer
    rewards: LateRewards
    seen: dict[str, Sample] = field(default_factory=dict)
    given: dict[str, tuple[float, ...]] = field(default_factory=dict)

    def turn(self) -> None:
        """Reward what has arrived."""
        for record in self.consumer.poll(0.05):
            sample = decode_as(Sample, record.value or b"")
            if sample.status is not Status.FINISHED or not sample.awaits_reward:
                continue
            self.seen[sample.sample_id] = sample
            if sample.sample_id != unscored:
                turns = tuple(0.25 * (1 + sample.replica + at) for at in range(len(sample.turns)))
                self.rewards.send(sample.sample_id, sum(turns), turn_rewards=turns)
                self.given.setdefault(sample.sample_id, turns)
        self.rewards.flush()


def settings_of(tmp_path: Path, name: str) -> Settings:
    """The agent forgets what it asked first: each session has a fork. What it returns as a reward is not asked for."""
    model = saved_chat_model(tmp_path / "chat", hidden_size=32, num_heads=4, max_position_embeddings=512)
    return small_settings(
        tmp_path,
        name,
        run={"num_steps": num_steps},
        model={"path": str(model), "max_context_tokens": 400},
        freshness={"alpha": 8.0},
        agent={"function": "support.agents_for_tests:forgets", "max_turns": 4, "max_tokens": 64},
        groups={"groups_per_batch": groups_per_batch, "group_size": group_size, "filter_zero_signal": False},
        reward={"function": None, "late": True, "deadline_seconds": deadline_seconds},
    )


def test_sessions_with_forks_are_trained_once_with_the_rewards_that_come_late(
    kafka_broker: KafkaBroker, run_topics: RunTopics, tmp_path: Path
) -> None:
    with whole_run(kafka_broker, tmp_path, settings_of(tmp_path, run_topics.run)) as run:
        scorer = run_scored(run)
        ledger = run.wait_until_closed()
    run.audited()

    verdicts = [verdict for record in ledger for verdict in record.verdicts]
    trained = [verdict for verdict in verdicts if verdict.disposition is Disposition.TRAINED]
    assert len(trained) == num_steps * groups_per_batch * group_size
    assert {verdict.sample_id for verdict in trained} <= rewards_named(ledger).keys()
    check_training(run, ledger, trained, scorer)

    # The one that nobody scored waited for the deadline, and was made again from its beginning.
    (given_up,) = [verdict for verdict in verdicts if verdict.sample_id == unscored]
    assert (given_up.disposition, given_up.late_reward) == (Disposition.UNREWARDED, None)
    again = scorer.seen["g1.r0.a1"]
    assert (again.resumed_from, len(again.turns), len(again.forks)) == (None, 2, 1)


def run_scored(run: WholeRun) -> OutsideScorer:
    """Start every role and score until all have ended."""
    run.dispatcher()
    run.trainer()
    run.worker()
    places = {
        TopicPartition(run.topics.samples, number): 0
        for number in range(run.settings.broker.samples_partitions)
    }
    with (
        run.broker.consumer(client_id="scorer") as consumer,
        LateRewards(run.broker, run.topics, scorer="test") as rewards,
    ):
        consumer.assign(places)
        scorer = OutsideScorer(consumer, rewards)

        def ended() -> bool:
            scorer.turn()
            run.raise_errors()
            return not any(role.thread.is_alive() for role in run.roles)

        wait_until(ended, patience_seconds, "the end of the run")
        return scorer


def check_training(
    run: WholeRun, ledger: list[LedgerRecord], trained: list[Verdict], scorer: OutsideScorer
) -> None:
    """Each sampled token of a session stands in one step, under the reward that was written for the session."""
    with run.broker.consumer(client_id="check") as consumer:
        payloads = PayloadStore(WeightsStore(run.manifest.weights_uri), run.topics)
        samples = read_referenced(consumer, run.topics, trained, payloads)
    for sample in samples.values():
        assert (len(sample.turns), len(sample.forks)) == (2, 1)
        assert sample.turn_rewards == scorer.given[sample.sample_id]
        assert sample.reward == sum(sample.turn_rewards)
        recorded = scorer.seen[sample.sample_id]
        assert (recorded.reward, recorded.turn_rewards, recorded.reward_components) == (None, (), {})
    steps = [record.body for record in ledger if isinstance(record.body, Step)]
    assert sum(step.num_samples for step in steps) == len(samples)
    assert sum(step.num_tokens for step in steps) == sum(
        sample.num_sampled_tokens for sample in samples.values()
    )
    mean = sum(sample.reward or 0.0 for sample in samples.values()) / len(samples)
    assert sum(step.reward_mean for step in steps) / len(steps) == pytest.approx(mean)
