"""What fails in a worker costs its own sample, and what it cannot go on without ends it with a reason."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from support.waiting import max_wait_seconds, wait_until
from support.worker_thread import Stage, long_sampling, running, slow_engine, with_prompt

from producers.engines.simulated import SimulatedEngine
from rollog.kernel.errors import (
    DecodeError,
    EngineDied,
    EngineError,
    EngineNotStarted,
    WeightsError,
    exit_status,
)
from schemas import (
    SamplingParameters,
    Status,
    WorkerState,
)

if TYPE_CHECKING:
    from producers.engines.ports import Generation, GenerationRequest


def test_a_reward_that_cannot_be_computed_fails_its_sample(stage: Stage) -> None:
    with running(stage):
        stage.give_grant()
        stage.order(with_prompt(stage.task(0), reward_inputs_json='{"behaviour": "fail"}'))
        stage.order(stage.task(1))
        bad, good = stage.samples(2)
    assert (bad.status, bad.error_class, bad.reward) == (Status.FAILED, "RewardError", None)
    assert bad.wasted_tokens > 0
    assert good.status is Status.FINISHED


def test_a_reward_for_each_turn_is_recorded_and_one_too_many_fails_the_sample(stage: Stage) -> None:
    with running(stage):
        stage.give_grant()
        for number, behaviour in enumerate(("one turn", "two turns")):
            inputs = f'{{"behaviour": "{behaviour}"}}'
            stage.order(with_prompt(stage.task(number), reward_inputs_json=inputs))
        samples = sorted(stage.samples(2), key=lambda sample: sample.group_id)
    assert [sample.turn_rewards for sample in samples] == [(0.5,), ()]
    assert [sample.status for sample in samples] == [Status.FINISHED, Status.FAILED]
    assert "2 turn_rewards for a response of 1 turn(s)" in (samples[1].error_message or "")


def test_a_task_that_takes_too_long_fails_whether_it_generates_or_is_scored(stage: Stage) -> None:
    with running(stage):
        stage.give_grant()
        stage.order(
            with_prompt(stage.task(0, timeout_seconds=0.3), reward_inputs_json='{"behaviour": "hang"}')
        )
        sample = stage.sample()
    assert (sample.status, sample.error_class) == (Status.FAILED, "RolloutTimeout")
    assert sample.wasted_tokens > 0


def test_a_slow_generation_is_timed_out(stage: Stage) -> None:
    with running(stage, engine=slow_engine()):
        stage.give_grant()
        stage.order(stage.task(0, timeout_seconds=0.3, sampling=long_sampling()))
        assert stage.sample().error_class == "RolloutTimeout"


def test_an_engine_error_fails_its_sample(stage: Stage) -> None:
    engine = SimulatedEngine(
        tokens_per_second=5000, failure_of=lambda request: "out of luck" if request.seed == 9 else None
    )
    with running(stage, engine=engine):
        stage.give_grant()
        stage.order(stage.task(0, seed=9))
        stage.order(stage.task(1))
        bad, good = stage.samples(2)
    assert (bad.status, bad.error_class, bad.error_message) == (Status.FAILED, "EngineError", "out of luck")
    assert good.status is Status.FINISHED


def test_a_prompt_that_does_not_fit_the_context_fails_with_the_numbers(stage: Stage) -> None:
    with running(stage):
        stage.give_grant()
        stage.order(with_prompt(stage.task(0), text="x" * 300))
        sample = stage.sample()
    assert (sample.status, sample.error_class) == (Status.FAILED, "DataError")
    assert "300 tokens" in (sample.error_message or "")


def test_truncated_sampling_for_training_fails_the_sample(stage: Stage) -> None:
    with running(stage):
        stage.give_grant()
        stage.order(stage.task(0, sampling=SamplingParameters(temperature=1.0, max_tokens=4, top_p=0.5)))
        assert stage.sample().error_class == "InvalidSampling"


def test_a_sample_that_is_too_large_fails_as_too_large(stage: Stage) -> None:
    settings = stage.settings()
    settings = replace(settings, broker=settings.broker.model_copy(update={"max_record_bytes": 900}))
    with running(stage, settings=settings):
        stage.give_grant()
        stage.order(with_prompt(stage.task(0), text="x" * 200))
        stage.order(stage.task(1))
        large, small = stage.samples(2)
    assert (large.status, large.error_class) == (Status.FAILED, "too_large")
    assert "max_record_bytes = 900" in (large.error_message or "")
    assert large.wasted_tokens > 0
    assert small.status is Status.FINISHED


def test_a_task_that_cannot_be_decoded_is_dead_lettered_and_fails_if_its_header_names_it(
    stage: Stage,
) -> None:
    with running(stage):
        stage.give_grant()
        stage.wait_until_serving(0)
        headers = [("type", b"RolloutTask"), ("task_id", b"1.77")]
        stage.producer.send(stage.topics.tasks, 0, b"garbage", headers=headers)
        stage.producer.send(stage.topics.tasks, 0, b"more garbage")
        stage.order(stage.task(1))
        bad, good = stage.samples(2)
        letters = wait_until(lambda: len(found := stage.dead_letters()) == 2 and found)
    assert (bad.status, bad.task_id, bad.error_class) == (Status.FAILED, "1.77", "UndecodableTask")
    assert good.status is Status.FINISHED
    assert letters
    assert (letters[0].value, letters[0].offset, letters[0].owner) == (b"garbage", 0, "worker-1")
    assert letters[0].headers["task_id"] == b"1.77"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"sample_partition": 99}, "task 1.77 wants its samples in partition 99, the run has 0 to"),
        ({"num_replicas": 2**40}, "task 1.77 orders 1099511627776 rollouts, a task of this run at most 8"),
    ],
)
def test_a_task_beyond_what_the_run_allows_is_dead_lettered_and_fails(
    stage: Stage, changes: dict[str, Any], reason: str
) -> None:
    with running(stage):
        stage.give_grant()
        stage.wait_until_serving(0)
        stage.order(replace(stage.task(1), task_id="1.77", **changes))
        stage.order(stage.task(2))
        bad, good = stage.samples(2)
        letters = wait_until(stage.dead_letters)
    assert (bad.status, bad.task_id) == (Status.FAILED, "1.77")
    assert reason in letters[0].reason
    assert good.status is Status.FINISHED


def test_a_flood_of_undecodable_tasks_ends_the_worker_with_a_clear_message(stage: Stage) -> None:
    with running(stage, expect_error=True) as thread:
        stage.give_grant()
        stage.wait_until_serving(0)
        for _ in range(101):
            stage.producer.send(stage.topics.tasks, 0, b"garbage")
        thread.join(max_wait_seconds)
        assert not thread.is_alive()
    assert isinstance(stage.error, BaseExceptionGroup)
    found = stage.error.subgroup(DecodeError)
    assert found is not None
    assert "101 records in a row" in str(found.exceptions[0])


def test_weights_that_do_not_match_their_sha256_are_not_served(stage: Stage) -> None:
    with running(stage, expect_error=True) as thread:
        stage.give_grant()
        stage.wait_until_serving(0)
        notice = stage.store.publish(1, b"x" * 100)
        (stage.home / "weights" / notice.name).write_bytes(b"y" * 100)
        stage.send(stage.topics.weights, notice)
        status = stage.wait_for_status(lambda status: status.error is not None)
        assert (status.state, status.served_version) == (WorkerState.SERVING, 0)
        assert "sha256" in (status.error or "")
        thread.join(max_wait_seconds)
    assert isinstance(stage.error, WeightsError)
    assert stage.values(stage.topics.workers)[-1] is None


def test_a_failed_load_is_made_good_by_a_later_version(stage: Stage) -> None:
    with running(stage, settings=stage.settings(load_attempts=50)):
        stage.give_grant()
        stage.wait_until_serving(0)
        notice = stage.store.publish(1, b"no weights file")
        stage.send(stage.topics.weights, notice)
        stage.wait_for_status(lambda status: status.state is WorkerState.LOAD_FAILED)
        stage.publish(2)
        stage.wait_until_serving(2)
        stage.order(stage.task(0))
        assert stage.sample().segments[0].version == 2


class DyingEngine(SimulatedEngine):
    """Dies with its first request."""

    async def generate(self, request: GenerationRequest) -> Generation:
        raise EngineDied(f"gone with {request.request_id}")


def test_an_engine_that_dies_ends_the_worker_without_samples(stage: Stage) -> None:
    with running(stage, engine=DyingEngine(), expect_error=True) as thread:
        stage.give_grant()
        stage.order(stage.task(0))
        thread.join(max_wait_seconds)
        assert not thread.is_alive()
    assert isinstance(stage.error, BaseExceptionGroup)
    assert stage.error.subgroup(EngineDied) is not None
    assert stage.read(stage.topics.samples) == []


class UnusableEngine(SimulatedEngine):
    """One that does not take this model."""

    async def start(self) -> None:
        raise EngineError("head size 16 is not supported")


def test_an_engine_that_cannot_start_ends_its_worker_with_a_status_of_its_own(stage: Stage) -> None:
    with running(stage, engine=UnusableEngine(), expect_error=True) as worker:
        wait_until(lambda: not worker.is_alive(), message="the worker's end")
    assert isinstance(stage.error, BaseExceptionGroup)
    found = stage.error.subgroup(EngineNotStarted)
    assert found is not None
    cause = found.exceptions[0]
    assert exit_status(cause) == 3
    assert "head size 16 is not supported" in str(cause)
    assert 'rollout.engine = "transformers"' in str(cause)
