"""The loop with real parts (transformers, DeepSpeed, the real dispatcher and trainer) on the real broker."""

from __future__ import annotations

import json
from collections import Counter
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
from support.loop_rewards import poisoned_prompt
from support.threaded_run import small_settings, verdict_counts, whole_run
from support.waiting import wait_until

from consumers.progress import RunProgress
from rollog.kernel.errors import DataError, exit_status, exit_status_configuration
from rollog.rules.freshness import lag_bound
from rollog.run.summary import summarize
from rollog.run.view import failure_lines
from schemas import Disposition, LedgerKind, Status, Step

if TYPE_CHECKING:
    from pathlib import Path

    from support.threaded_run import WholeRun

    from rollog.kernel.broker.kafka import KafkaBroker
    from rollog.kernel.broker.topics import RunTopics
    from schemas import LedgerRecord

pytestmark = [pytest.mark.broker, pytest.mark.engine]


def check_invariants(run: WholeRun, ledger: list[LedgerRecord]) -> Counter[Disposition]:
    """I1, I2 and I3 on a closed ledger, and what the audit finds in the topics and the weights store."""
    assert ledger[-1].kind is LedgerKind.CLOSE
    verdicts = [verdict for record in ledger for verdict in record.verdicts]
    places = [(verdict.partition, verdict.offset) for verdict in verdicts]
    assert sorted(places) == [header.place for header in run.samples()]
    trained = [verdict for verdict in verdicts if verdict.disposition is Disposition.TRAINED]
    rollouts = Counter((verdict.group_id, verdict.replica) for verdict in trained)
    assert set(rollouts.values()) == {1}
    for before, record in pairwise(ledger):
        lags = [verdict.lag for verdict in record.verdicts if verdict.disposition is Disposition.TRAINED]
        assert all(lag is not None and lag <= lag_bound(before.alpha) for lag in lags)
    report = run.audited(head=record_head(run))
    assert report.samples.num_records == len(places)
    assert not any(check.num_unchecked for check in report.checks)
    return verdict_counts(ledger)


def audit_live(run: WholeRun) -> None:
    """A run that goes on passes the audit as far as it has come."""
    assert run.audited().version >= 0


def record_head(run: WholeRun) -> str:
    """The ledger's head as the summary of the run shows it."""
    return run.view().ledger_head


def test_with_alpha_zero_and_filtered_groups_the_run_ends_and_trains_nothing_stale(
    kafka_broker: KafkaBroker, run_topics: RunTopics, tmp_path: Path
) -> None:
    settings = small_settings(tmp_path, run_topics.run, freshness={"alpha": 0.0}, groups={"group_size": 2})
    with whole_run(kafka_broker, tmp_path, settings) as run:
        ledger = run.to_its_end()
    counts = check_invariants(run, ledger)
    assert counts[Disposition.FILTERED] > 0
    assert counts[Disposition.TRAINED] == 3 * 2 * 2
    steps = [record for record in ledger if record.kind is LedgerKind.STEP]
    assert {verdict.lag for record in steps for verdict in record.verdicts if verdict.lag is not None} == {0}


def test_a_synchronous_start_an_asynchronous_rest_and_barriers(
    kafka_broker: KafkaBroker, run_topics: RunTopics, tmp_path: Path
) -> None:
    freshness = {"alpha": [[0, 0.0], [2, 2.0]], "barrier_every_steps": 5}
    settings = small_settings(tmp_path, run_topics.run, freshness=freshness, run={"num_steps": 6})
    with whole_run(kafka_broker, tmp_path, settings) as run:
        ledger = run.to_its_end()
    counts = check_invariants(run, ledger)
    assert counts[Disposition.TRAINED] == 6 * 2 * 4
    steps = [record.body for record in ledger if isinstance(record.body, Step)]
    assert [step.alpha for step in steps] == [0.0, 0.0, 2.0, 2.0, 0.0, 2.0]
    assert [set(steps[number - 1].lags) for number in (1, 2, 5)] == [{"0"}, {"0"}, {"0"}]
    assert all(0 < step.statistics["first_effective_sample_size"] <= 1 + 1e-6 for step in steps)
    assert all(step.statistics["first_divergence"] >= 0 for step in steps)


@pytest.mark.parametrize("mode", ["drain", "abort"])
def test_running_rollouts_are_drained_or_aborted_and_resumed_when_weights_arrive(
    kafka_broker: KafkaBroker, run_topics: RunTopics, tmp_path: Path, mode: str
) -> None:
    settings = small_settings(
        tmp_path,
        run_topics.run,
        run={"num_steps": 5},
        freshness={"alpha": 2.0},
        sampling={"max_tokens": 40},
        rollout={"reload": mode},
    )
    with whole_run(kafka_broker, tmp_path, settings) as run:
        ledger = run.to_its_end()
        samples = run.finished_samples()
    counts = check_invariants(run, ledger)
    assert counts[Disposition.TRAINED] == 5 * 2 * 4
    assert len({segment.version for sample in samples for segment in sample.segments}) > 1
    if mode == "drain":
        assert {len(sample.segments) for sample in samples} == {1}
    else:
        assert any(len(sample.segments) > 1 for sample in samples)


def test_workers_come_and_go_and_dispatcher_and_trainer_are_restarted_without_loss(
    kafka_broker: KafkaBroker, run_topics: RunTopics, tmp_path: Path
) -> None:
    settings = small_settings(tmp_path, run_topics.run, run={"num_steps": 6})
    with whole_run(kafka_broker, tmp_path, settings) as run:
        first_dispatcher = run.dispatcher()
        first_trainer = run.trainer()
        first_worker = run.worker()
        run.wait_for_version(1)
        run.worker()
        first_worker.end()
        run.wait_for_version(2)
        first_dispatcher.end()
        audit_live(run)
        run.dispatcher()
        run.wait_for_version(3)
        audit_live(run)
        first_trainer.end()
        run.trainer()
        ledger = run.wait_until_closed()
    counts = check_invariants(run, ledger)
    assert counts[Disposition.TRAINED] == 6 * 2 * 4
    assert ledger[-1].version == 6


def test_without_replication_one_task_makes_the_whole_group(
    kafka_broker: KafkaBroker, run_topics: RunTopics, tmp_path: Path
) -> None:
    settings = small_settings(tmp_path, run_topics.run, dispatch={"replicate": False}, run={"num_steps": 1})
    with whole_run(kafka_broker, tmp_path, settings) as run:
        ledger = run.to_its_end()
    check_invariants(run, ledger)
    finished = [header for header in run.samples() if header.status is Status.FINISHED]
    assert len({header.task_id for header in finished}) < len(finished)


def test_a_dataset_that_ends_is_trained_to_its_last_group(
    kafka_broker: KafkaBroker, run_topics: RunTopics, tmp_path: Path
) -> None:
    settings = small_settings(
        tmp_path,
        run_topics.run,
        run={"num_steps": 1000},
        groups={"filter_zero_signal": False, "groups_per_batch": 3},
        data={"num_epochs": 1},
    )
    train = tmp_path / "prompts.jsonl"
    train.write_text("".join(train.read_text().splitlines(keepends=True)[:7]))
    with whole_run(kafka_broker, tmp_path, settings) as run:
        ledger = run.to_its_end()
    counts = check_invariants(run, ledger)
    assert counts[Disposition.TRAINED] == 7 * 4
    assert ledger[-1].version == 3


def test_a_poisoned_prompt_is_given_up_after_its_attempts_and_the_run_ends(
    kafka_broker: KafkaBroker, run_topics: RunTopics, tmp_path: Path
) -> None:
    settings = small_settings(
        tmp_path,
        run_topics.run,
        groups={"filter_zero_signal": False, "max_attempts": 2, "group_size": 2},
        reward={"function": "support.loop_rewards:fails_on_one_prompt"},
        data={"shuffle": False},
    )
    train = tmp_path / "prompts.jsonl"
    healthy = train.read_text().splitlines()[1:4]
    train.write_text("\n".join([json.dumps({"prompt": poisoned_prompt}), *healthy]))
    with whole_run(kafka_broker, tmp_path, settings) as run:
        ledger = run.to_its_end()
    counts = check_invariants(run, ledger)
    assert counts[Disposition.TRAINED] == 3 * 2 * 2
    outcomes = {group.group_id: group.outcome for record in ledger for group in record.closed_groups}
    assert outcomes[0] is Disposition.INCOMPLETE
    attempts = Counter(header.rollout for header in run.samples() if header.status is Status.FAILED)
    assert {group % 4 for group, _ in attempts} == {0}
    assert max(attempts.values()) == settings.groups.max_attempts
    assert all(
        max(attempts[(group, replica)] for replica in range(2)) == settings.groups.max_attempts
        for group, outcome in outcomes.items()
        if outcome is Disposition.INCOMPLETE
    )
    num_given_up = sum(outcome is Disposition.INCOMPLETE for outcome in outcomes.values())
    summary = summarize(settings, run.view(), kafka_version="")
    assert summary["groups_by_outcome"] == {"trained": 6, "incomplete": num_given_up}
    assert summary["samples_by_disposition"] == {name.value: count for name, count in counts.items()}
    counted = run.trainer_metrics.registry.get_sample_value
    assert counted("rollog_trainer_groups_closed_total", {"outcome": "incomplete"}) == num_given_up
    failed = {"disposition": "failed", "reason": ""}
    assert counted("rollog_trainer_verdicts_total", failed) == counts[Disposition.FAILED]


def test_a_run_whose_rewards_never_vary_ends_and_says_what_to_change(
    kafka_broker: KafkaBroker, run_topics: RunTopics, tmp_path: Path
) -> None:
    settings = small_settings(
        tmp_path,
        run_topics.run,
        groups={"max_untrained_in_a_row": 5, "group_size": 2},
        reward={"function": "support.loop_rewards:always_right"},
    )
    with whole_run(kafka_broker, tmp_path, settings) as run:
        run.dispatcher()
        run.trainer()
        run.worker()
        with pytest.raises(DataError, match=r"groups\.max_untrained_in_a_row") as raised:
            run.wait_until_closed()
    assert exit_status(raised.value) == exit_status_configuration
    closed = [group.outcome for record in run.ledger() for group in record.closed_groups]
    assert set(closed) == {Disposition.FILTERED}
    assert len(closed) >= 5


def test_a_run_whose_every_reward_fails_ends_within_its_first_batch_and_says_where(
    kafka_broker: KafkaBroker, run_topics: RunTopics, tmp_path: Path
) -> None:
    settings = small_settings(
        tmp_path,
        run_topics.run,
        groups={"group_size": 2},
        reward={"function": "support.loop_rewards:always_raises"},
    )
    with whole_run(kafka_broker, tmp_path, settings) as run:
        run.dispatcher()
        run.trainer()
        run.worker()
        with pytest.raises(DataError, match=r"KeyError at loop_rewards\.py, line \d+") as raised:
            run.wait_until_closed()
        with RunProgress(kafka_broker, run_topics) as progress:
            shown = wait_until(lambda: failure_lines(progress.poll(0.1)), message="a heartbeat with failures")
    assert exit_status(raised.value) == exit_status_configuration
    closed = [group.outcome for record in run.ledger() for group in record.closed_groups]
    assert set(closed) == {Disposition.INCOMPLETE}
    assert "rollouts failed: the reward function raised KeyError at loop_rewards.py" in shown[0]
