"""Reloads of a worker on a broker in memory: what each mode does to running rollouts, and weights that do not load."""

from __future__ import annotations

import asyncio
import threading
from collections import defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from safetensors.numpy import save
from support.builders import LedgerBuilder
from support.waiting import max_wait_seconds, wait_until
from support.worker_thread import Stage, running

from producers.engines.simulated import SimulatedEngine, simulated_logprob
from producers.rollout.reporting import ReloadStopwatch
from producers.rollout.resumption import resumed_seed
from rollog.kernel.broker.ports import TopicPartition
from rollog.kernel.errors import WeightsError
from rollog.kernel.metrics import Metrics
from rollog.kernel.weights import WeightsStore
from rollog.rules.ledger_state import record_hash
from schemas import (
    Cancel,
    CancelReason,
    FinishReason,
    Genesis,
    SamplingParameters,
    Status,
    WeightVersion,
    WorkerState,
)
from schemas.codec import encode

if TYPE_CHECKING:
    from pathlib import Path

    from producers.engines.ports import Generation, GenerationRequest
    from rollog.kernel.broker.memory import MemoryBroker
    from schemas import Sample

modes = ["keep", "drain", "abort"]


class RecordingEngine(SimulatedEngine):
    """Keeps what it was asked and what it answered, per rollout; `loads` waits while `may_load` is clear."""

    def __init__(self, tokens_per_second: float = 80, max_context_tokens: int = 256) -> None:
        super().__init__(tokens_per_second=tokens_per_second, max_context_tokens=max_context_tokens)
        self.parts: dict[str, list[tuple[GenerationRequest, Generation]]] = defaultdict(list)
        self.loads: list[int] = []
        self.may_load = threading.Event()
        self.may_load.set()

    async def generate(self, request: GenerationRequest) -> Generation:
        generation = await super().generate(request)
        self.parts[request.request_id.partition("~")[0]].append((request, generation))
        return generation

    async def load_weights(self, path: Path, version: int) -> None:
        self.loads.append(version)
        await asyncio.to_thread(self.may_load.wait)
        await super().load_weights(path, version)


class SlowStore(WeightsStore):
    """Notes the versions that are fetched; a fetch waits while `may_fetch` is clear."""

    def __init__(self, uri: str) -> None:
        super().__init__(uri)
        self.fetches: list[int] = []
        self.may_fetch = threading.Event()
        self.may_fetch.set()

    def fetch(self, notice: WeightVersion, *where: Any) -> Any:
        self.fetches.append(notice.version)
        self.may_fetch.wait()
        return super().fetch(notice, *where)


def long_sampling() -> SamplingParameters:
    return SamplingParameters(temperature=1.0, max_tokens=200, stop_token_ids=(63,))


def check_segments(sample: Sample) -> None:
    """Every token has the logprob of the version that its segment names."""
    versions = [segment.version for segment in sample.segments for _ in range(segment.start, segment.end)]
    tokens = zip(sample.token_ids.tolist(), versions, strict=True)
    expected = [simulated_logprob(token, version) for token, version in tokens]
    np.testing.assert_allclose(sample.behaviour_logprobs, expected, rtol=1e-6)


def begin_rollouts(stage: Stage, count: int) -> None:
    stage.give_grant()
    stage.wait_until_serving(0)
    for group in range(count):
        stage.order(stage.task(group, seed=group, sampling=long_sampling()))
    # On a machine that is busy with other things the first may have ended before the last begins.
    stage.wait_for_status(
        lambda status: status.num_running == count or bool(stage.read(stage.topics.samples))
    )


@pytest.mark.parametrize("mode", modes)
def test_a_reload_in_mid_generation_labels_every_token_with_its_version(stage: Stage, mode: str) -> None:
    metrics = Metrics()
    settings = stage.settings(capacity=16, reload=mode)
    with running(stage, engine=RecordingEngine(), settings=settings, metrics=metrics):
        begin_rollouts(stage, 16)
        notices = {}
        for version in range(1, 6):
            notices[version] = stage.publish(version)
            stage.wait_until_serving(version)
            # The others have more tokens under this version by then.
            wait_until(lambda: len(stage.read(stage.topics.samples)) >= 2 * version)  # noqa: B023
        samples = stage.samples(16)
    most_segments = max(len(sample.segments) for sample in samples)
    assert most_segments == 1 if mode == "drain" else most_segments > 1
    for sample in samples:
        assert sample.status is Status.FINISHED
        check_segments(sample)
        for segment in sample.segments:
            assert segment.version == 0 or segment.weights_digest == notices[segment.version].digest
    value = metrics.registry.get_sample_value
    assert value("rollog_rollout_reload_seconds_count", {"mode": mode}) == 6
    assert value("rollog_rollout_reload_stall_seconds_count", {"mode": mode}) == 6
    assert value("rollog_rollout_served_version") == 5
    num_resumed = value("rollog_rollout_resumed_total")
    assert num_resumed if mode == "abort" else num_resumed == 0


def test_a_drain_starts_waiting_tasks_only_under_the_new_version(stage: Stage) -> None:
    settings = stage.settings(capacity=2, reload="drain")
    engine = RecordingEngine(tokens_per_second=200)
    with running(stage, engine=engine, settings=settings):
        begin_rollouts(stage, 2)
        stage.publish(1)
        stage.wait_for_status(lambda status: status.state is WorkerState.RELOADING)
        for group in range(2, 6):
            stage.order(stage.task(group, seed=group, sampling=long_sampling()))
        samples = stage.samples(6)
    versions = [[segment.version for segment in sample.segments] for sample in samples]
    assert versions == [[0], [0], [1], [1], [1], [1]]


def test_an_aborted_rollout_goes_on_behind_its_earlier_tokens(stage: Stage) -> None:
    engine = RecordingEngine(tokens_per_second=60)
    with running(stage, engine=engine, settings=stage.settings(capacity=8, reload="abort")):
        begin_rollouts(stage, 8)
        for version in range(1, 4):
            stage.publish(version)
            stage.wait_until_serving(version)
            wait_until(lambda: len(stage.read(stage.topics.samples)) >= version)  # noqa: B023
        samples = stage.samples(8)
    assert max(len(parts) for parts in engine.parts.values()) > 1
    for sample in samples:
        parts = engine.parts[f"{sample.task_id}/0"]
        tokens: list[int] = []
        logprobs = b""
        for number, (request, part) in enumerate(parts):
            assert list(request.prompt_token_ids) == [*sample.prompt_token_ids.tolist(), *tokens]
            assert request.sampling.max_tokens == long_sampling().max_tokens - len(tokens)
            assert request.sampling.stop_token_ids == (63,)
            assert request.seed == (resumed_seed(sample.seed, number) if number else sample.seed)
            tokens += part.token_ids.tolist()
            logprobs += part.behaviour_logprobs.tobytes()
        assert sample.token_ids.tolist() == tokens
        assert sample.behaviour_logprobs.tobytes() == logprobs
        assert sample.finish_reason is parts[-1][1].finish_reason is not FinishReason.ABORT
        assert {part.finish_reason for _, part in parts[:-1]} <= {FinishReason.ABORT}
        check_segments(sample)


def test_many_quick_versions_abort_a_rollout_only_so_often_and_it_ends(stage: Stage) -> None:
    engine = RecordingEngine(tokens_per_second=40)
    settings = stage.settings(reload="abort", max_resumes=2)
    with running(stage, engine=engine, settings=settings):
        begin_rollouts(stage, 4)
        for version in range(1, 12):
            stage.publish(version)
            stage.wait_until_serving(version)
        samples = stage.samples(4)
    assert {sample.status for sample in samples} == {Status.FINISHED}
    num_requests = [len(parts) for parts in engine.parts.values()]
    assert max(num_requests) == 3
    assert any(len(sample.segments) > 3 for sample in samples)
    for sample in samples:
        check_segments(sample)


def test_a_suspended_rollout_can_be_cancelled_and_its_tokens_are_counted(stage: Stage) -> None:
    engine = RecordingEngine()
    with running(stage, engine=engine, settings=stage.settings(reload="abort")):
        begin_rollouts(stage, 1)
        engine.may_load.clear()
        stage.publish(1)
        wait_until(lambda: engine.loads == [0, 1] and engine.parts)
        stage.order(Cancel(task_id="1.0", epoch=1, grant_id="1.1", reason=CancelReason.STALE))
        sample = stage.sample()
        engine.may_load.set()
    assert (sample.status, sample.cancel_reason) == (Status.CANCELLED, "stale")
    assert sample.wasted_tokens == len(engine.parts["1.0/0"][0][1].token_ids)


def test_a_worker_leaves_with_rollouts_suspended(stage: Stage) -> None:
    engine = RecordingEngine()
    with running(stage, engine=engine, settings=stage.settings(reload="abort")):
        begin_rollouts(stage, 2)
        engine.may_load.clear()
        stage.publish(1)
        wait_until(lambda: engine.loads == [0, 1] and len(engine.parts) == 2)
        stage.stop.set()
        assert {sample.status for sample in stage.samples(2)} == {Status.CANCELLED}
        engine.may_load.set()


@pytest.mark.parametrize("mode", modes)
@pytest.mark.parametrize("damage", ["missing", "unreadable"])
def test_rollouts_outlive_a_version_that_cannot_be_loaded(stage: Stage, mode: str, damage: str) -> None:
    engine = RecordingEngine()
    with running(stage, engine=engine, settings=stage.settings(reload=mode, load_attempts=50)):
        begin_rollouts(stage, 4)
        notice = stage.store.publish(1, b"no weights file")
        if damage == "missing":
            stage.store.delete(notice.name)
        stage.send(stage.topics.weights, notice)
        status = stage.wait_for_status(lambda status: status.error is not None)
        # What cannot be fetched takes nothing out of service, what cannot be loaded does.
        is_serving = (status.state, status.served_version) == (WorkerState.SERVING, 0)
        assert is_serving if damage == "missing" else status.state is WorkerState.LOAD_FAILED
        stage.publish(2)
        stage.wait_until_serving(2)
        samples = stage.samples(4)
    for sample in samples:
        assert sample.status is Status.FINISHED, sample.error_message
        assert {segment.version for segment in sample.segments} <= ({0} if mode == "drain" else {0, 2})
        check_segments(sample)


def test_a_worker_that_cannot_load_stops_serving_says_so_tries_again_and_leaves(stage: Stage) -> None:
    engine, metrics = RecordingEngine(), Metrics()
    settings = stage.settings(load_attempts=3)
    with running(stage, engine=engine, settings=settings, metrics=metrics, expect_error=True) as thread:
        stage.give_grant()
        stage.wait_until_serving(0)
        engine.may_load.clear()
        stage.send(stage.topics.weights, stage.store.publish(1, b"no weights file"))
        stage.wait_for_status(lambda status: status.state is WorkerState.RELOADING)
        stage.order(stage.task(0))
        stage.wait_for_status(lambda status: len(status.open_tasks) == 1)
        engine.may_load.set()
        status = stage.wait_for_status(lambda status: status.state is WorkerState.LOAD_FAILED)
        thread.join(max_wait_seconds)
        assert not thread.is_alive()
    assert (status.served_version, status.num_running) == (None, 0)
    assert "version 1 could not be loaded" in (status.error or "")
    assert engine.loads == [0, 1, 1, 1]
    assert not engine.parts
    assert (stage.sample().status, stage.sample().wasted_tokens) == (Status.CANCELLED, 0)
    assert isinstance(stage.error, WeightsError)
    assert stage.values(stage.topics.workers)[-1] is None
    assert metrics.registry.get_sample_value("rollog_rollout_failed_loads_total") == 3
    assert metrics.registry.get_sample_value("rollog_rollout_served_version") == -1


def test_a_late_joiner_loads_the_newest_committed_version_and_no_other(stage: Stage) -> None:
    for version in range(1, 6):
        stage.publish(version)
    engine = RecordingEngine()
    with running(stage, engine=engine):
        stage.give_grant()
        stage.wait_until_serving(5)
        stage.order(stage.task(0))
        assert [segment.version for segment in stage.sample().segments] == [5]
    assert engine.loads == [5]


class StartingEngine(SimulatedEngine):
    """Never comes up."""

    is_closed = False

    async def start(self) -> None:
        await asyncio.Event().wait()

    async def close(self) -> None:
        self.is_closed = True


def test_a_worker_whose_engine_is_still_starting_heeds_a_stop(stage: Stage) -> None:
    engine = StartingEngine()
    with running(stage, engine=engine) as thread:
        stage.give_grant()
        stage.wait_for_status(lambda status: status.grant_id is not None)
        stage.order(stage.task(0))
        stage.wait_for_status(lambda status: len(status.open_tasks) == 1)
        stage.stop.set()
        thread.join(max_wait_seconds)
        assert not thread.is_alive()
    assert engine.is_closed
    assert stage.sample().status is Status.CANCELLED
    assert stage.values(stage.topics.workers)[-1] is None


def test_a_stop_before_the_first_heartbeat_is_heeded_without_one(stage: Stage) -> None:
    stage.stop.set()
    with running(stage, engine=StartingEngine()) as thread:
        thread.join(max_wait_seconds)
        assert not thread.is_alive()
    assert stage.values(stage.topics.workers) == []


def test_a_worker_commits_how_far_it_read_as_it_leaves(stage: Stage, memory_broker: MemoryBroker) -> None:
    with running(stage):
        stage.give_grant(partition=2)
        for group in range(5):
            stage.order(stage.task(group))
        stage.samples(5)
    place = TopicPartition(stage.topics.tasks, 2)
    assert memory_broker.committed_offsets[stage.topics.worker_group][place] == 5


def test_a_worker_leaves_no_downloads_behind(stage: Stage) -> None:
    stage.store = WeightsStore(f"memory://{stage.topics.run}")
    directory = stage.home / "downloads" / stage.worker_id
    engine = RecordingEngine()
    with running(stage, engine=engine):
        stage.give_grant()
        stage.publish(1)
        stage.wait_until_serving(1)
        assert [each.name for each in directory.iterdir()] == ["lock"]
        engine.may_load.clear()
        stage.publish(2)
        wait_until(lambda: engine.loads[-1] == 2)
        assert len(list(directory.glob("*.safetensors"))) == 1
        stage.stop.set()
        stage.wait_for_status(lambda status: status.state is WorkerState.LEAVING)
        engine.may_load.set()
    assert not directory.exists()


def test_the_stall_of_a_drain_is_the_mean_over_the_slots_in_use_when_it_begins() -> None:
    watch = ReloadStopwatch()
    watch.begin(8.0)
    watch.rollout_ended(9.0)
    watch.held(num_running=4)
    watch.rollout_ended(11.0)
    watch.begin(12.0)
    watch.paused(14.0, num_running=3)
    watch.rollout_ended(15.0)
    # One slot is idle since 11, three stand since 14.
    assert watch.end(16.0) == (8.0, (5.0 + 3 * 2.0) / 4, 2.0)


def test_nothing_stalls_while_a_version_is_fetched_or_after_the_worker_starts_tasks_again() -> None:
    watch = ReloadStopwatch()
    watch.begin(10.0)
    watch.held(num_running=2)
    watch.rollout_ended(11.0)
    watch.released()
    watch.rollout_ended(12.0)
    watch.paused(14.0, num_running=2)
    assert watch.end(15.0) == (5.0, 1.0, 1.0)
    watch.rollout_ended(17.0)
    watch.begin(20.0)
    watch.paused(20.5, num_running=0)
    assert watch.end(21.0) == (1.0, 0.0, 0.5)


def test_after_a_swap_that_failed_the_pause_lasts_until_a_version_is_loaded() -> None:
    watch = ReloadStopwatch()
    watch.begin(10.0)
    watch.paused(11.0, num_running=1)
    watch.released()
    watch.paused(13.0, num_running=1)
    assert watch.end(14.0) == (4.0, 3.0, 3.0)


@pytest.mark.parametrize("mode", modes)
def test_tasks_are_started_and_finished_under_the_served_version_while_a_fetch_takes_its_time(
    stage: Stage, mode: str
) -> None:
    store = stage.store = SlowStore(stage.store.uri)
    metrics = Metrics()
    settings = stage.settings(capacity=2, reload=mode)
    engine = RecordingEngine(tokens_per_second=2000)
    with running(stage, engine=engine, settings=settings, metrics=metrics):
        stage.give_grant()
        stage.wait_until_serving(0)
        store.may_fetch.clear()
        stage.publish(1)
        wait_until(lambda: store.fetches == [0, 1])
        for group in range(6):
            stage.order(stage.task(group, seed=group, sampling=long_sampling()))
        stage.order(stage.task(6, seed=6, sampling=long_sampling(), min_version=1))
        samples = stage.samples(6)
        status = stage.wait_for_status(lambda status: len(status.open_tasks) == 1)
        store.may_fetch.set()
        stage.wait_until_serving(1)
        last = stage.samples(7)[-1]
    assert (status.state, status.served_version) == (WorkerState.SERVING, 0)
    assert {segment.version for sample in samples for segment in sample.segments} == {0}
    assert [segment.version for segment in last.segments] == [1]
    value = metrics.registry.get_sample_value
    assert value("rollog_rollout_fetch_seconds_count") == 2
    assert value("rollog_rollout_reload_pause_seconds_count", {"mode": mode}) == 2


def test_a_fetch_that_fails_again_and_again_ends_the_worker_which_serves_until_then(stage: Stage) -> None:
    metrics, store = Metrics(), SlowStore(stage.store.uri)
    stage.store = store
    settings = stage.settings(load_attempts=3)
    with running(stage, settings=settings, metrics=metrics, expect_error=True) as thread:
        stage.give_grant()
        stage.wait_until_serving(0)
        lost = WeightVersion(version=1, sha256="f" * 64, name="v1.safetensors", num_bytes=9)
        store.may_fetch.clear()
        stage.send(stage.topics.weights, lost)
        wait_until(lambda: store.fetches == [0, 1])
        stage.order(stage.task(0))
        assert [segment.version for segment in stage.sample().segments] == [0]
        store.may_fetch.set()
        status = stage.wait_for_status(lambda status: status.error is not None)
        thread.join(max_wait_seconds)
        assert not thread.is_alive()
    assert (status.state, status.served_version) == (WorkerState.SERVING, 0)
    assert "version 1 could not be fetched" in (status.error or "")
    assert isinstance(stage.error, WeightsError)
    assert metrics.registry.get_sample_value("rollog_rollout_failed_loads_total") == 3
    assert metrics.registry.get_sample_value("rollog_rollout_served_version") == 0


def test_a_notice_of_weights_that_the_ledger_does_not_know_is_left_out(stage: Stage) -> None:
    """Anybody may be able to write it: the worker neither leaves nor stops for it."""
    ledger, initial = LedgerBuilder(), stage.publish(0)
    genesis = ledger.records[0]
    assert isinstance(genesis.body, Genesis)
    body = replace(genesis.body, weights_sha256=initial.sha256)
    genesis = replace(genesis, body=body)
    stage.send(stage.topics.steps, genesis)
    with running(stage, settings=stage.settings(load_attempts=2)):
        stage.give_grant()
        stage.wait_until_serving(0)
        forged = WeightVersion(version=1, sha256="f" * 64, name="v1.safetensors", num_bytes=9)
        stage.send(stage.topics.weights, forged)
        stage.send(stage.topics.weights, replace(forged, version=10**9))
        stage.order(stage.task(0, seed=0))
        assert stage.samples(1)[0].segments[0].version == 0
        stage.send(stage.topics.weights, replace(initial, version=1))
        genuine = stage.store.publish(1, save({"w": np.full(2, 1, dtype=np.float32)}))
        step = ledger.step(weights_sha256=genuine.sha256)
        stage.send(stage.topics.steps, replace(step, previous_hash=record_hash(encode(genesis))))
        stage.send(stage.topics.weights, genuine)
        stage.wait_until_serving(1)
        stage.order(stage.task(1, seed=1))
        assert stage.samples(2)[1].segments[0].weights_digest == genuine.digest
