"""The worker on a broker in memory: every task ends in exactly one sample, whatever happens."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest
from support.waiting import max_wait_seconds, wait_until
from support.worker_thread import HeldEngine, Stage, long_sampling, running, slow_engine

from producers.engines.simulated import SimulatedEngine, simulated_logprob
from producers.rollout.prompts import ByteTokenizer
from rollog.kernel.broker.ports import TopicPartition
from rollog.kernel.metrics import Metrics
from schemas import (
    Cancel,
    CancelReason,
    DispatcherEpoch,
    FinishReason,
    Grant,
    Kind,
    Revoke,
    SamplingParameters,
    Status,
    Stop,
    WorkerState,
)

if TYPE_CHECKING:
    from producers.engines.ports import Generation, GenerationRequest
    from rollog.kernel.broker.memory import MemoryBroker


def test_a_task_ends_as_a_finished_scored_sample(stage: Stage) -> None:
    with running(stage):
        stage.give_grant()
        stage.wait_until_serving(0)
        task = stage.task(3, replica=1, attempt=2)
        stage.order(task)
        sample = stage.sample()
    assert sample.status is Status.FINISHED
    assert (sample.sample_id, sample.task_id) == ("g3.r1.a2", task.task_id)
    assert (sample.worker_id, sample.grant_id, sample.epoch) == ("worker-1", "1.1", 1)
    assert (sample.reward, sample.reward_components) == (11.0, {"part": 0.5})
    assert sample.prompt_token_ids.tolist() == list(b"1 2 3 : 6 =")
    assert sample.response_text == ByteTokenizer().decode(sample.token_ids.tolist())
    assert len(sample.loss_mask) == sample.loss_mask.sum() == sample.num_tokens > 0
    assert [(s.version, s.start, s.end) for s in sample.segments] == [(0, 0, sample.num_tokens)]
    expected = [simulated_logprob(int(token), 0) for token in sample.token_ids]
    np.testing.assert_allclose(sample.behaviour_logprobs, expected, rtol=1e-6)


def test_samples_go_to_the_partition_the_task_names_with_headers(stage: Stage) -> None:
    with running(stage):
        stage.give_grant()
        for group in range(6):
            stage.order(stage.task(group))
        stage.samples(6)
    with stage.broker.consumer(client_id="look") as consumer:
        consumer.assign({TopicPartition(stage.topics.samples, 1): 0})
        records = consumer.poll(1)
    assert {record.header("group_id") for record in records} == {b"1", b"3", b"5"}
    assert {record.header("status") for record in records} == {b"finished"}


def test_heartbeats_tell_state_version_position_and_open_tasks(stage: Stage) -> None:
    with running(stage, engine=slow_engine()):
        stage.give_grant(partition=2)
        stage.wait_until_serving(0)
        for group in range(6):
            stage.order(stage.task(group, sampling=long_sampling()))
        status = stage.wait_for_status(lambda status: len(status.open_tasks) == 6)
        assert status.num_running == status.capacity == 4
        assert status.tasks_position == 6
        assert (status.state, status.engine, status.grant_id) == (WorkerState.SERVING, "simulated", "1.1")
        assert status.served_digest == stage.publish(0).digest


def test_a_task_that_arrives_twice_makes_one_sample(stage: Stage) -> None:
    with running(stage):
        stage.give_grant()
        stage.order(stage.task(0))
        stage.order(stage.task(0))
        stage.order(stage.task(1))
        assert [sample.group_id for sample in stage.samples(2)] == [0, 1]


def test_one_task_can_order_several_replicas(stage: Stage) -> None:
    with running(stage):
        stage.give_grant()
        stage.order(stage.task(0, num_replicas=3))
        samples = stage.samples(3)
    assert [sample.replica for sample in samples] == [0, 1, 2]
    assert len({sample.seed for sample in samples}) == 3
    assert {sample.status for sample in samples} == {Status.FINISHED}


class AbortedRequests(SimulatedEngine):
    """An engine that remembers what it was asked to abort."""

    def __init__(self) -> None:
        super().__init__(tokens_per_second=4, max_context_tokens=256, length_of=lambda _: 240)
        self.aborted: list[str] = []

    async def abort(self, request_id: str) -> None:
        self.aborted.append(request_id)
        await super().abort(request_id)


@pytest.mark.parametrize("reason", [CancelReason.SATISFIED, CancelReason.SURPLUS, CancelReason.STALE])
def test_cancel_ends_a_running_task_inside_the_engine_with_its_wasted_tokens_counted(
    stage: Stage, reason: CancelReason
) -> None:
    engine = AbortedRequests()
    with running(stage, engine=engine):
        stage.give_grant()
        stage.wait_until_serving(0)
        task = stage.task(0, sampling=SamplingParameters(temperature=1.0, max_tokens=240))
        stage.order(task)
        status = stage.wait_for_status(lambda status: status.num_running == 1)
        assert status.first_versions == {task.task_id: 0}
        # Ten heartbeats take half a second, in which there are tokens.
        num_statuses = len(stage.statuses())
        wait_until(lambda: len(stage.statuses()) > num_statuses + 10, message="heartbeats")
        stage.order(Cancel(task_id=task.task_id, epoch=1, grant_id="1.1", reason=reason))
        sample = stage.sample()
        stage.wait_for_status(lambda status: not status.num_running and not status.first_versions)
    assert (sample.status, sample.cancel_reason) == (Status.CANCELLED, reason.value)
    assert sample.num_tokens == 0 < sample.wasted_tokens
    assert engine.aborted == [f"{task.task_id}/0"]


def test_revoke_expires_running_and_held_tasks_and_a_new_grant_goes_on(stage: Stage) -> None:
    with running(stage, engine=slow_engine(), settings=stage.settings(capacity=1)):
        stage.give_grant()
        stage.wait_until_serving(0)
        for group in range(3):
            stage.order(stage.task(group, sampling=long_sampling()))
        stage.wait_for_status(lambda status: len(status.open_tasks) == 3)
        stage.send(
            stage.topics.control, Revoke(grant_id="1.1", epoch=1, worker_id="worker-1", reason="lease")
        )
        samples = stage.samples(3)
        assert {(s.status, s.cancel_reason) for s in samples} == {(Status.EXPIRED, "revoked")}
        stage.wait_for_status(lambda status: status.grant_id is None and not status.open_tasks)
        stage.give_grant("1.2", partition=1)
        stage.order(stage.task(7, grant_id="1.2", sampling=SamplingParameters(temperature=1.0, max_tokens=1)))
        assert stage.samples(4)[-1].grant_id == "1.2"


def test_stop_ends_open_tasks_as_cancelled_and_the_worker_leaves(stage: Stage) -> None:
    with running(stage, engine=slow_engine()) as thread:
        stage.give_grant()
        stage.wait_until_serving(0)
        stage.order(stage.task(0, sampling=long_sampling()))
        stage.wait_for_status(lambda status: status.num_running == 1)
        stage.order(Stop(epoch=1, grant_id="1.1"))
        thread.join(max_wait_seconds)
        assert not thread.is_alive()
    sample = stage.sample()
    assert (sample.status, sample.cancel_reason) == (Status.CANCELLED, "end of run")
    assert stage.values(stage.topics.workers)[-1] is None
    status = stage.status()
    assert status is not None
    assert status.state is WorkerState.LEAVING


def test_a_stopped_worker_process_leaves_in_the_same_way(stage: Stage) -> None:
    with running(stage, engine=slow_engine()) as thread:
        stage.give_grant()
        stage.wait_until_serving(0)
        stage.order(stage.task(0, sampling=long_sampling()))
        stage.wait_for_status(lambda status: status.num_running == 1)
        stage.stop.set()
        thread.join(max_wait_seconds)
    assert stage.sample().status is Status.CANCELLED


def test_a_closed_run_is_left_even_before_the_engine_starts(stage: Stage) -> None:
    stage.close_run()
    with running(stage) as thread:
        thread.join(max_wait_seconds)
        assert not thread.is_alive()
    assert stage.status() is None


def test_a_closed_run_is_left_even_where_another_dispatcher_has_taken_over_since(stage: Stage) -> None:
    stage.close_run()
    stage.take_over(stage.newest_epoch + 1)
    with running(stage) as thread:
        thread.join(max_wait_seconds)
        assert not thread.is_alive()


def test_a_running_worker_leaves_when_the_run_is_closed(stage: Stage) -> None:
    with running(stage) as thread:
        stage.give_grant()
        stage.wait_until_serving(0)
        stage.close_run()
        thread.join(max_wait_seconds)
        assert not thread.is_alive()


def test_who_says_closed_while_the_ledger_is_open_sends_no_worker_away(stage: Stage) -> None:
    with running(stage):
        stage.say_closed()
        stage.give_grant()
        stage.wait_until_serving(0)
        stage.order(stage.task(0))
        assert stage.sample().status is Status.FINISHED


def test_grants_of_epochs_that_do_not_exist_are_ignored(stage: Stage) -> None:
    with running(stage):
        stage.give_grant()
        stage.send(stage.topics.control, DispatcherEpoch(epoch=2**63 - 1, dispatcher_id="x"))
        stage.send(
            stage.topics.control,
            Grant(grant_id="9.9", epoch=10**9, worker_id=stage.worker_id, partition=1, start_offset=0),
        )
        stage.give_grant("1.2", partition=2)
        stage.wait_until_serving(0)
        stage.order(stage.task(0, grant_id="1.2"))
        assert stage.sample().status is Status.FINISHED


def test_a_task_waits_until_its_version_is_served(stage: Stage) -> None:
    with running(stage):
        stage.give_grant()
        stage.wait_until_serving(0)
        stage.order(stage.task(0, min_version=1))
        stage.wait_for_status(lambda status: len(status.open_tasks) == 1 and status.num_running == 0)
        stage.publish(1)
        assert stage.sample().segments[0].version == 1


def order_evaluation(stage: Stage, group: int, version: int) -> None:
    stage.order(
        stage.task(
            group,
            kind=Kind.EVALUATION,
            pinned_version=version,
            evaluation="greedy",
            sampling=SamplingParameters(temperature=0.0, max_tokens=8),
        )
    )


def test_a_pinned_evaluation_runs_under_its_version_although_a_newer_one_waits(stage: Stage) -> None:
    engine, metrics = HeldEngine(), Metrics()
    value = metrics.registry.get_sample_value
    with running(stage, engine=engine, metrics=metrics):
        stage.give_grant()
        stage.wait_until_serving(0)
        order_evaluation(stage, 0, 0)
        stage.wait_for_status(lambda status: status.num_running == 1)
        stage.publish(1)
        wait_until(lambda: value("rollog_rollout_fetch_seconds_count") == 2, message="version 1 is fetched")
        engine.release()
        (sample,) = stage.samples(1, stage.topics.evaluations)
        stage.wait_until_serving(1)
        order_evaluation(stage, 1, 0)
        gone = stage.samples(2, stage.topics.evaluations)[1]
    assert (sample.pinned_version, sample.evaluation, sample.reward) == (0, "greedy", 11.0)
    assert [segment.version for segment in sample.segments] == [0]
    assert (gone.status, gone.cancel_reason) == (Status.EXPIRED, "version_gone")
    assert stage.read(stage.topics.samples) == []


class CountingEngine(SimulatedEngine):
    """Counts its requests."""

    num_requests = 0

    async def generate(self, request: GenerationRequest) -> Generation:
        self.num_requests += 1
        return await super().generate(request)


def test_while_the_broker_is_away_rollouts_keep_their_places_and_nothing_is_lost(
    stage: Stage, memory_broker: MemoryBroker
) -> None:
    settings = stage.settings(capacity=2)
    settings = replace(
        settings,
        rollout=settings.rollout.model_copy(update={"max_in_flight_bytes": 1}),
        reward=settings.reward.model_copy(update={"max_in_flight": 1}),
    )
    engine = CountingEngine(tokens_per_second=50, max_context_tokens=256)
    with running(stage, engine=engine, settings=settings):
        stage.give_grant()
        stage.wait_until_serving(0)
        for group in range(8):
            stage.order(stage.task(group))
        stage.wait_for_status(lambda status: status.num_running == 2)
        memory_broker.pause()
        before = engine.num_requests
        wait_until(lambda: not engine._responses)
        assert engine.num_requests <= before + 2 + 1  # slots and scoring places
        memory_broker.resume()
        samples = stage.samples(8)
    assert {sample.status for sample in samples} == {Status.FINISHED}
    assert all(sample.finish_reason in {FinishReason.STOP, FinishReason.LENGTH} for sample in samples)
