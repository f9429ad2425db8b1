"""Rewards that somebody writes before the attempt they name is ordered: trainer, restarted trainer and audit agree."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from support.altered_topics import RecordedTopics
from support.late_scorer import rewards_named
from support.simulated_plan import Plan
from support.simulated_run import SimulatedRun

from consumers.audit.auditor import audit_run
from consumers.ledger import read_ledger
from rollog.kernel.broker.ports import TopicPartition
from rollog.kernel.broker.topics import run_topic_names
from rollog.kernel.weights import WeightsStore
from rollog.rules.headers import record_digest
from schemas import Disposition, LedgerRecord, RewardReference

if TYPE_CHECKING:
    from collections.abc import Callable

    from consumers.audit.findings import Check, Finding
    from rollog.kernel.broker.ports import Broker
    from rollog.kernel.broker.topics import RunTopics

plan = Plan(
    late_rewards=True,
    num_steps=4,
    groups_per_batch=1,
    filters={"filter_zero_signal": False},
)
early = "g2.r1.a0"


def nothing(_run: SimulatedRun) -> None:
    """The trainer that read it goes on."""


def restart(run: SimulatedRun) -> None:
    """The next trainer reads it again, when its attempt is ordered."""
    while not any(run.auditor.ledger.closed_groups):
        run.calm_round()
    run.kill_trainer()
    run.start_trainer()


@pytest.mark.parametrize("happens", [nothing, restart])
def test_a_reward_that_comes_before_its_order_counts(happens: Callable[[SimulatedRun], None]) -> None:
    with SimulatedRun(plan) as run:
        assert run.scorer is not None
        run.scorer.write(early, 77.0)
        run.turn_trainer()
        happens(run)
        run.come_to_the_end()
        report = audit_run(run.broker, run.topics, WeightsStore(run.trainer_settings.weights_uri))
        assert report.is_clean, "\n".join(report.lines())
        named = rewards_named([entry.record for entry in read_ledger(run.broker, run.topics)])
        assert named[early] == 0


far = "g6.r1.a0"


@pytest.fixture(scope="module")
def with_far_reward() -> tuple[RecordedTopics, RunTopics]:
    """A run that has ended, of which one reward came before its group was within reach, and again behind its sample."""
    # With alpha 0 and batches of one group reach ends with group 3 while none is closed.
    with SimulatedRun(replace(plan, alpha=0.0, num_steps=8)) as run:
        assert run.scorer is not None
        run.scorer.mistakes["missing"] = 0.0
        run.scorer.write(far, 77.0)
        run.turn_trainer()
        run.come_to_the_end()
        topics = [*run_topic_names(run.topics), run.topics.rewards]
        return RecordedTopics.copied(run.broker, topics), run.topics


def test_a_reward_from_beyond_reach_never_counts_and_the_audit_finds_one_that_was_used(
    with_far_reward: tuple[RecordedTopics, RunTopics],
) -> None:
    recorded, topics = with_far_reward
    assert i17_of(recorded, topics) == []
    assert rewards_named(recorded.ledger(topics.steps))[far] > 0

    first = recorded.records[TopicPartition(topics.rewards, 0)][0]
    early_one = RewardReference(offset=0, digest=record_digest(first.value))

    def use_it(record: LedgerRecord) -> LedgerRecord:
        verdicts = (
            replace(each, late_reward=early_one) if each.sample_id == far else each
            for each in record.verdicts
        )
        return replace(record, verdicts=tuple(verdicts))

    (finding,) = i17_of(recorded.rechained(topics.steps, use_it), topics)
    assert finding.message.startswith("not the first valid reward of its sample")
    assert (finding.record_id, finding.found[:8]) == (far, "offset 0")


def test_where_a_ledger_record_is_missing_a_reward_from_beyond_reach_raises_no_alarm(
    with_far_reward: tuple[RecordedTopics, RunTopics],
) -> None:
    recorded, topics = with_far_reward
    missing = recorded.all(topics.steps)[1]
    check = i17_check(recorded.without(missing), topics)
    # Both replicas of its group: how much room was left to them depends on it too.
    assert (check.findings, check.num_unchecked) == ([], 2)


def test_a_group_without_room_goes_unrewarded_and_what_was_pruned_of_it_raises_no_alarm() -> None:
    with SimulatedRun(replace(plan, reward_deadline_seconds=3.0)) as run:
        assert run.scorer is not None
        for number in range(8):
            run.scorer.write(f"g1.r0.a{900 + number}", 1.0, (0.5,) * 6000)
        run.turn_trainer()
        run.come_to_the_end()
        assert i17_of(run.broker, run.topics) == []
        verdicts = [
            verdict for entry in read_ledger(run.broker, run.topics) for verdict in entry.record.verdicts
        ]
        of_group = {verdict.disposition for verdict in verdicts if verdict.group_id == 1}
        assert Disposition.UNREWARDED in of_group
        assert Disposition.TRAINED not in of_group

        topics = [*run_topic_names(run.topics), run.topics.rewards]
        recorded = RecordedTopics.copied(run.broker, topics)
        pruned = recorded.truncated(TopicPartition(run.topics.rewards, 0), 8)
        check = i17_check(pruned, run.topics)
        assert (check.findings, check.num_unchecked > 0) == ([], True)


def i17_of(broker: Broker, topics: RunTopics) -> list[Finding]:
    return i17_check(broker, topics).findings


def i17_check(broker: Broker, topics: RunTopics) -> Check:
    return next(check for check in audit_run(broker, topics).checks if check.name == "I17")
