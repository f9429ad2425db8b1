"""I17 on a run with late rewards, as it is and after somebody has been at its topics; and its replay."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from support.altered_topics import RecordedTopics
from support.late_scorer import rewards_named
from support.simulated_plan import Plan
from support.simulated_run import SimulatedRun

from consumers.archive import WeightsChoice, export_archive
from consumers.audit.auditor import audit_run
from consumers.ledger import read_ledger
from consumers.references import read_referenced
from rollog.kernel.broker.archive import ArchiveBroker
from rollog.kernel.broker.ports import TopicPartition
from rollog.kernel.broker.topics import run_topic_names
from rollog.kernel.errors import LedgerError
from rollog.kernel.payloads import PayloadStore
from rollog.kernel.weights import WeightsStore
from rollog.run.retention import plan_prune
from schemas import Disposition, LedgerRecord, Reward
from schemas.codec import decode_as, encode
from trainer.engines.simulated import SimulatedTrainingEngine
from trainer.recorded.history import read_history
from trainer.recorded.redo import Recording, restore
from trainer.recorded.replay import replay_steps

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from consumers.audit.findings import Finding
    from rollog.kernel.broker.topics import RunTopics

plan = Plan(
    late_rewards=True,
    reward_deadline_seconds=4.0,
    num_steps=6,
    filters={"filter_zero_signal": False},
)


@pytest.fixture(scope="module")
def run() -> Iterator[SimulatedRun]:
    with SimulatedRun(plan) as made:
        made.come_to_the_end()
        yield made


@pytest.fixture(scope="module")
def recorded(run: SimulatedRun) -> RecordedTopics:
    return RecordedTopics.copied(run.broker, [*run_topic_names(run.topics), run.topics.rewards])


def i17(topics: RunTopics, recorded: RecordedTopics) -> list[Finding]:
    report = audit_run(recorded, topics)
    return next(check for check in report.checks if check.name == "I17").findings


def with_rewards(
    recorded: RecordedTopics, topics: RunTopics, change: Callable[[int, Reward], Reward]
) -> RecordedTopics:
    place = TopicPartition(topics.rewards, 0)
    records = []
    for record in recorded.records[place]:
        try:
            reward = decode_as(Reward, record.value or b"")
        except ValueError:
            records.append(record)
            continue
        records.append(replace(record, value=encode(change(record.offset, reward))))
    return recorded.with_records(place, records)


def test_the_audit_of_the_run_is_clean_and_says_what_waited(run: SimulatedRun) -> None:
    report = audit_run(run.broker, run.topics, WeightsStore(run.trainer_settings.weights_uri))
    assert report.is_clean, "\n".join(report.lines())
    check = next(check for check in report.checks if check.name == "I17")
    assert check.num_checked >= 6 * 2 * 2


def test_another_value_of_a_reward_is_found(run: SimulatedRun, recorded: RecordedTopics) -> None:
    ledger = [entry.record for entry in read_ledger(run.broker, run.topics)]
    wanted = next(iter(rewards_named(ledger).values()))

    def change(offset: int, reward: Reward) -> Reward:
        return replace(reward, reward=reward.reward + 1) if offset == wanted else reward

    (finding,) = i17(run.topics, with_rewards(recorded, run.topics, change))
    assert finding.message.startswith("not the first valid reward of its sample")


def test_a_reward_that_was_passed_over_is_found(run: SimulatedRun, recorded: RecordedTopics) -> None:
    ledger = [entry.record for entry in read_ledger(run.broker, run.topics)]
    named = rewards_named(ledger)
    name, offset = next((name, offset) for name, offset in named.items() if offset > 0)

    def change(number: int, reward: Reward) -> Reward:
        return replace(reward, sample_id=name, turn_rewards=()) if number == 0 else reward

    found = i17(run.topics, with_rewards(recorded, run.topics, change))
    assert any(finding.record_id == name and f"offset {offset}" in finding.found for finding in found)


def test_a_sample_that_is_trained_without_a_named_reward_is_found(
    run: SimulatedRun, recorded: RecordedTopics
) -> None:
    def forget(record: LedgerRecord) -> LedgerRecord:
        return replace(record, verdicts=tuple(replace(each, late_reward=None) for each in record.verdicts))

    found = i17(run.topics, recorded.rechained(run.topics.steps, forget))
    assert {finding.message.partition(", by")[0] for finding in found} == {
        "trained, but the ledger names no reward for it"
    }


def test_a_position_that_goes_back_is_found(run: SimulatedRun, recorded: RecordedTopics) -> None:
    last = recorded.ledger(run.topics.steps)[-1].sequence

    def go_back(record: LedgerRecord) -> LedgerRecord:
        return replace(record, reward_position=0, reward_mark=0) if record.sequence == last else record

    (finding,) = i17(run.topics, recorded.rechained(run.topics.steps, go_back))
    assert "goes back" in finding.message


def test_a_replay_is_equal_and_notices_a_reward_that_is_gone(run: SimulatedRun, tmp_path: Path) -> None:
    archive = tmp_path / "run.zip"
    store = WeightsStore(run.trainer_settings.weights_uri)
    export_archive(run.broker, run.topics, store, archive, weights=WeightsChoice.ALL)
    for broker in (run.broker, ArchiveBroker(archive)):
        recording = Recording(
            broker=broker,
            topics=run.topics,
            store=store,
            downloads=tmp_path,
            settings=run.trainer_settings,
            history=read_history(broker, run.topics),
        )
        engine = SimulatedTrainingEngine()
        restore(engine, recording, [], at_most=0)
        replayed = list(replay_steps(engine, recording, range(1, plan.num_steps + 1)))
        assert [step.differing for step in replayed] == [()] * plan.num_steps


def test_what_is_trained_is_read_with_the_reward_that_the_ledger_names(
    run: SimulatedRun, recorded: RecordedTopics
) -> None:
    trained = [
        verdict
        for entry in read_ledger(run.broker, run.topics)
        for verdict in entry.record.verdicts
        if verdict.disposition is Disposition.TRAINED
    ]
    payloads = PayloadStore(WeightsStore(run.trainer_settings.weights_uri), run.topics)
    with run.broker.consumer(client_id="test") as consumer:
        samples = read_referenced(consumer, run.topics, trained, payloads)
    assert all(sample.reward is not None for sample in samples.values())

    def change(_offset: int, reward: Reward) -> Reward:
        return replace(reward, scorer="somebody else")

    altered = with_rewards(recorded, run.topics, change)
    with (
        altered.consumer(client_id="test") as reader,
        pytest.raises(LedgerError, match="is not the record"),
    ):
        read_referenced(reader, run.topics, trained, payloads)


def test_rewards_below_the_audit_window_may_be_deleted(run: SimulatedRun) -> None:
    ledger = [entry.record for entry in read_ledger(run.broker, run.topics)]
    found = plan_prune(ledger, (0, 0), keep_steps=2, redo_from=None)
    kept = [
        verdict.late_reward.offset
        for record in ledger
        if record.version > plan.num_steps - 2
        for verdict in record.verdicts
        if verdict.late_reward is not None
    ]
    assert 0 < found.reward_offset <= min([*kept, ledger[-1].reward_mark])


def test_what_is_left_after_pruning_passes_the_audit() -> None:
    with SimulatedRun(plan) as run:
        run.come_to_the_end()
        ledger = [entry.record for entry in read_ledger(run.broker, run.topics)]
        found = plan_prune(ledger, (0, 0), keep_steps=2, redo_from=None)
        offsets = {
            TopicPartition(run.topics.samples, number): offset for number, offset in enumerate(found.offsets)
        }
        with run.broker.admin() as admin:
            admin.delete_records(offsets | {TopicPartition(run.topics.rewards, 0): found.reward_offset})
        report = audit_run(run.broker, run.topics, WeightsStore(run.trainer_settings.weights_uri))
        assert report.is_clean, "\n".join(report.lines())
        check = next(check for check in report.checks if check.name == "I17")
        assert check.num_checked > check.num_unchecked
