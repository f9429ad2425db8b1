"""The progress of a run, from its topics."""

from __future__ import annotations

import pytest
from support.written_run import WrittenRun, a_verdict

from consumers.progress import RunProgress, RunTimes
from rollog.kernel.broker.memory import MemoryBroker
from rollog.kernel.broker.ports import TopicPartition
from rollog.kernel.broker.topics import RunTopics
from rollog.kernel.errors import LedgerError, TopicMismatch
from schemas import (
    Disposition,
    FinishReason,
    Kind,
    LedgerKind,
    Sample,
    Segment,
    Status,
    WorkerState,
    WorkerStatus,
    float32_array,
    int32_array,
    uint8_array,
)

topics = RunTopics("rollog", "first")


def a_run() -> WrittenRun:
    return WrittenRun(MemoryBroker(), topics)


def an_answer(group_id: int, reward: float, *, version: int = 0) -> Sample:
    return Sample(
        sample_id=f"e{group_id}",
        task_id=f"1.{group_id}",
        kind=Kind.EVALUATION,
        status=Status.FINISHED,
        epoch=1,
        grant_id="grant",
        worker_id="w",
        group_id=group_id,
        replica=0,
        attempt=0,
        prompt_id=str(group_id),
        segments=(Segment(version=version, weights_digest="0" * 16, start=0, end=1),),
        token_ids=int32_array([1]),
        behaviour_logprobs=float32_array([0.0]),
        loss_mask=uint8_array([1]),
        finish_reason=FinishReason.STOP,
        reward=reward,
        evaluation="greedy",
        pinned_version=version,
    )


def a_heartbeat(*, state: WorkerState = WorkerState.SERVING, num_tokens: int = 0) -> WorkerStatus:
    return WorkerStatus(
        worker_id="w", state=state, capacity=4, num_tokens=num_tokens, engine="vllm", open_tasks=("1.1",)
    )


def test_before_the_ledger_begins_there_is_no_version() -> None:
    with RunProgress(a_run().broker, topics) as progress:
        view = progress.poll()

    assert (view.version, view.is_closed, view.reward_mean, view.lag_max) == (-1, False, None, 0)


def test_steps_add_up() -> None:
    run = a_run()
    run.genesis()
    run.step(1, reward=0.25, lags={"0": 2})

    with RunProgress(run.broker, topics) as progress:
        assert progress.poll().version == 1
        run.step(2, reward=0.75, lags={"0": 1, "1": 1})
        run.ledger(LedgerKind.VERDICTS, 2, None, (a_verdict(4, Disposition.FILTERED, "no signal"),))
        view = progress.read_to_end(10)

    assert (view.version, view.alpha, view.alpha_history) == (2, 1.0, (1.0, 1.0))
    assert view.reward_history == (0.25, 0.75)
    assert (view.lags, view.lag_max) == ({0: 3, 1: 1}, 1)
    assert view.dispositions == {"filtered": 1, "trained": 4}
    assert view.reasons == {"filtered: no signal": 1}
    assert view.tokens_trained == 40
    assert [timings.wait_seconds for timings in view.step_timings] == [0.25, 0.25]
    assert view.versions == {"torch": "2"}


def test_samples_are_counted_up_to_the_close_of_the_ledger() -> None:
    run = a_run()
    run.genesis()
    for partition in (0, 0, 1):
        run.write(topics.samples, an_answer(0, 1.0), partition=partition)
    with RunProgress(run.broker, topics) as progress:
        assert progress.poll().samples_produced == 3

        run.close(end_offsets=(2, 1))
        run.write(topics.samples, an_answer(1, 1.0))
        view = progress.read_to_end(10)

    assert (view.samples_produced, view.is_closed, view.close_reason) == (3, True, "done")
    assert len(view.ledger_head) == 64


def test_held_out_accuracy_is_known_per_evaluation_and_version() -> None:
    run = a_run()
    for group_id, reward in enumerate((1.0, 0.0, 1.0, 1.0)):
        run.write(topics.evaluations, an_answer(group_id, reward), partition=group_id % 2)
    run.write(topics.evaluations, an_answer(0, 1.0, version=3))

    with RunProgress(run.broker, topics) as progress:
        view = progress.read_to_end(10)

    assert view.accuracy("greedy", 0) == 0.75
    assert view.accuracy("sampled", 0) is None
    newest = view.newest_evaluation("greedy")
    assert newest is not None
    assert newest[0] == 3


def test_workers_come_and_go_and_their_tokens_stay() -> None:
    run = a_run()
    with RunProgress(run.broker, topics) as progress:
        run.write(topics.workers, a_heartbeat(num_tokens=100), key=b"w")
        view = progress.read_to_end(10)
        assert [worker.worker_id for worker in view.workers] == ["w"]
        assert (view.num_open_tasks, view.engines) == (1, ("vllm",))

        run.write(topics.workers, a_heartbeat(state=WorkerState.LEAVING, num_tokens=130), key=b"w")
        run.write(topics.workers, None, key=b"w")
        view = progress.read_to_end(10)

    assert view.workers == ()
    assert view.tokens_generated == 130


def test_the_times_of_a_run_are_those_of_the_log() -> None:
    run = a_run()
    run.genesis()
    run.write(topics.evaluations, an_answer(0, 1.0))
    run.step(1, reward=0.25, lags={"0": 2})
    run.close(1)

    with RunProgress(run.broker, topics) as progress:
        view = progress.read_to_end(10)
    with run.broker.consumer(client_id="reader") as consumer:
        consumer.assign({TopicPartition(topics.steps, 0): 0, TopicPartition(topics.evaluations, 0): 0})
        records = consumer.poll(1.0)

    genesis, *_, close = [record.timestamp_ms for record in records if record.topic == topics.steps]
    (evaluation,) = [record.timestamp_ms for record in records if record.topic == topics.evaluations]
    assert view.wall_seconds == (close - genesis) / 1000
    assert view.generating_seconds == (close - evaluation) / 1000


def test_the_first_trace_of_a_rollout_counts_in_whatever_order_topics_are_read() -> None:
    times = RunTimes(genesis_ms=1_000, newest_ms=9_000)

    assert times.generating_seconds == 0.0
    for at_ms in (5_000, 3_000, 4_000):
        times.rollout(at_ms)

    assert (times.wall_seconds, times.generating_seconds) == (8.0, 6.0)


def test_what_happened_before_is_no_speed() -> None:
    run = a_run()
    for number in range(3000):
        run.write(topics.workers, a_heartbeat(num_tokens=number), key=b"w")

    with RunProgress(run.broker, topics) as progress:
        speeds = [progress.poll().tokens_per_second for _ in range(3)]

    assert speeds == [0.0, 0.0, 0.0]


def test_a_broken_chain_is_not_shown_as_progress() -> None:
    run = a_run()
    run.genesis()
    run.break_chain()
    run.step(1, reward=0.5, lags={"0": 1})
    run.step(2, reward=0.5, lags={"0": 1})

    with RunProgress(run.broker, topics) as progress, pytest.raises(LedgerError):
        progress.poll()


def test_a_run_without_topics_is_named() -> None:
    with pytest.raises(TopicMismatch, match=r"rollog\.first\.samples does not exist"):
        RunProgress(MemoryBroker(), topics)
