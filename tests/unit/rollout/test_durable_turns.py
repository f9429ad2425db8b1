"""Turns of episodes are on the log before anybody acts on them, and another worker goes on from there."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from support.waiting import wait_until
from support.worker_thread import Stage, a_stage, running

from producers.engines.simulated import SimulatedEngine
from producers.environments.names import EnvironmentSpec
from producers.environments.pool import EnvironmentPool
from producers.environments.process import EnvironmentLimits
from producers.rewards.episodes import EpisodeRewards
from producers.rollout.episodes import Episodes, EpisodeSettings
from producers.rollout.prompts import ByteTokenizer
from producers.rollout.speech import TextSpeech
from rollog.kernel.broker.memory import MemoryBroker
from rollog.kernel.broker.topics import RunTopics
from rollog.kernel.metrics import Metrics
from schemas import (
    Kind,
    RolloutTask,
    Sample,
    SamplingParameters,
    SchemaError,
    Status,
    Turn,
    WorkerStatus,
    float32_array,
    int32_array,
)
from schemas.codec import decode_as, encode
from schemas.headers import headers_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from producers.engines.ports import Generation, GenerationRequest

pytestmark = pytest.mark.timeout(120)

num_turns = 6


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    with a_stage(MemoryBroker(), RunTopics("rollog", "first"), tmp_path) as stage:
        yield stage


class Remembering(SimulatedEngine):
    """Remembers what it was asked for, and calls `before` first."""

    def __init__(self, before: Callable[[int], None] = lambda _: None) -> None:
        super().__init__(tokens_per_second=5000, max_context_tokens=256)
        self._before = before
        self.asked: list[list[int]] = []

    async def generate(self, request: GenerationRequest) -> Generation:
        self._before(len(self.asked))
        self.asked.append(list(request.prompt_token_ids))
        return await super().generate(request)


class Speechless(Remembering):
    """Samples nothing."""

    async def generate(self, request: GenerationRequest) -> Generation:
        made = await super().generate(request)
        return replace(made, token_ids=int32_array(), behaviour_logprobs=float32_array(), spans=())


def games(name: str = "Turns", **parameters: Any) -> Episodes:
    return Episodes(
        pool=EnvironmentPool(EnvironmentLimits(num_processes=1, step_timeout_seconds=600)),
        settings=EpisodeSettings(
            environment=EnvironmentSpec(
                environment=f"support.episodes_for_tests:{name}",
                parameters={"num_turns": num_turns} | parameters,
            ),
            max_turns=10,
        ),
        speech=lambda: TextSpeech(ByteTokenizer()),
    )


def a_game(stage: Stage, attempt: int = 0, **changes: Any) -> RolloutTask:
    task = stage.task(
        0,
        task_id=f"1.{attempt + 1}",
        attempt=attempt,
        seed=attempt + 5,
        turns_position=0,
        sampling=SamplingParameters(temperature=1.0, max_tokens=12),
        **changes,
    )
    prompt = replace(task.prompt, text="", reward_inputs_json=json.dumps({"seed": 7}))
    return replace(task, reward="", prompt=changes.get("prompt", prompt))


def turns(stage: Stage) -> list[Turn]:
    """Those that can be read."""
    found: list[Turn] = []
    for value in stage.values(stage.topics.turns):
        with suppress(SchemaError):
            found.append(decode_as(Turn, value or b""))
    return found


def left_behind(stage: Stage, attempt: int, at_turn: int, **changes: Any) -> None:
    """A worker that comes to a turn whose environment hangs, and leaves."""
    stage.worker_id, grant_id = f"worker-{attempt}", f"1.{attempt + 1}"
    settings = replace(stage.settings(), durable_turns=True)
    before = len(turns(stage))
    with running(
        stage,
        rewards=EpisodeRewards(),
        episodes=games(at_turn=at_turn, does="hang"),
        engine=Remembering(),
        settings=settings,
    ):
        stage.give_grant(grant_id)
        stage.order(replace(a_game(stage, attempt, **changes), grant_id=grant_id))
        expected = at_turn if attempt == 0 else before + 1
        wait_until(lambda: len(turns(stage)) >= expected, message="the turns before the environment hangs")
    stage.stop.clear()


def finished(
    stage: Stage,
    attempt: int,
    engine: SimulatedEngine,
    *,
    metrics: Metrics | None = None,
    name: str = "Turns",
    **changes: Any,
) -> Sample:
    stage.worker_id, grant_id = f"worker-{attempt}", f"1.{attempt + 1}"
    num_samples = len(stage.read(stage.topics.samples))
    settings = replace(stage.settings(), durable_turns=True)
    with running(
        stage,
        rewards=EpisodeRewards(),
        episodes=games(name),
        engine=engine,
        settings=settings,
        metrics=metrics,
    ):
        stage.give_grant(grant_id)
        stage.order(replace(a_game(stage, attempt, **changes), grant_id=grant_id))
        samples = stage.samples(num_samples + 1)
    (sample,) = (sample for sample in samples if sample.attempt == attempt)
    assert (sample.status, sample.error_message) == (Status.FINISHED, None)
    return sample


def test_a_turn_is_on_the_log_before_the_environment_hears_it(stage: Stage) -> None:
    written: list[int] = []
    engine = Remembering(before=lambda _: written.append(len(turns(stage))))
    sample = finished(stage, 0, engine)
    assert written == list(range(num_turns))
    kept = turns(stage)
    assert [turn.number for turn in kept] == list(range(num_turns))
    assert sample.resumed_from is None
    sampled = sample.token_ids[sample.loss_mask == 1].tolist()
    assert sampled == [token for turn in kept for token in turn.token_ids.tolist()]


def test_another_worker_goes_on_from_the_last_turn_and_the_sample_is_made_of_both(stage: Stage) -> None:
    left_behind(stage, 0, at_turn=3)
    engine, metrics = Remembering(), Metrics()
    sample = finished(stage, 1, engine, metrics=metrics, resume_attempt=0)
    # The environment hung at its third step: three turns were acknowledged, and none of them is made again.
    assert len(engine.asked) == num_turns - 3
    assert sample.resumed_from == "1.1"
    assert sample.reward == pytest.approx(0.25 * num_turns + 7)
    sampled = sample.token_ids[sample.loss_mask == 1].tolist()
    assert sampled == [token for turn in turns(stage) for token in turn.token_ids.tolist()]
    whole = [*sample.prompt_token_ids.tolist(), *sample.token_ids.tolist()]
    assert all(asked == whole[: len(asked)] for asked in engine.asked)
    own = [turn for turn in turns(stage) if turn.attempt == 1]
    bases = [None if turn.base is None else turn.base.numbers for turn in own]
    assert bases == [(0, 1, 2)] + [None] * (len(own) - 1)
    assert metrics.rollout_turns_served_again._value.get() == 3


def test_a_rollout_is_taken_up_again_and_again(stage: Stage) -> None:
    left_behind(stage, 0, at_turn=2)
    left_behind(stage, 1, at_turn=3, resume_attempt=0)
    engine = Remembering()
    sample = finished(stage, 2, engine, resume_attempt=0)
    assert len(engine.asked) == num_turns - 3
    assert sample.resumed_from == "1.2"


def test_rollouts_that_are_taken_up_together_go_on_with_their_own_turns(stage: Stage) -> None:
    tasks = [
        replace(
            a_game(stage),
            task_id=f"1.1{group}",
            group_id=group,
            sample_partition=group % 2,
            prompt=replace(a_game(stage).prompt, reward_inputs_json=json.dumps({"seed": group})),
        )
        for group in range(4)
    ]
    engines, samples = [Remembering(), Remembering()], []
    for attempt, engine in enumerate(engines):
        stage.worker_id, grant_id = f"worker-{attempt}", f"1.{attempt + 1}"
        settings = replace(stage.settings(), durable_turns=True)
        with running(stage, rewards=EpisodeRewards(), episodes=games(), engine=engine, settings=settings):
            stage.give_grant(grant_id)
            for task in tasks:
                given = replace(task, grant_id=grant_id, attempt=attempt)
                again = replace(given, task_id=f"2{task.task_id}", resume_attempt=0)
                stage.order(again if attempt else given)
            samples = stage.samples(4 * (attempt + 1))
        stage.stop.clear()
    assert len(engines[0].asked) == 4 * num_turns
    assert engines[1].asked == []
    for task in tasks:
        first, second = (sample for sample in samples if sample.group_id == task.group_id)
        assert first.token_ids.tolist() == second.token_ids.tolist()
        assert {first.resumed_from, second.resumed_from} == {None, task.task_id}


def test_versions_of_what_was_taken_over_count_for_the_lag_and_are_in_the_sample(stage: Stage) -> None:
    left_behind(stage, 0, at_turn=3)
    stage.publish(1)
    sample = finished(stage, 1, Remembering(), resume_attempt=0)
    assert sample.first_version == 0
    assert {segment.version for segment in sample.segments} == {0, 1}
    assert stage.store.names()[0].split("-")[1][:16] == sample.segments[0].weights_digest


def test_a_task_that_may_take_over_nothing_begins_anew(stage: Stage) -> None:
    left_behind(stage, 0, at_turn=3)
    engine = Remembering()
    sample = finished(stage, 1, engine)
    assert len(engine.asked) == num_turns
    assert sample.resumed_from is None


def test_an_environment_that_acts_outside_is_begun_anew(stage: Stage) -> None:
    left_behind(stage, 0, at_turn=3)
    engine, metrics = Remembering(), Metrics()
    sample = finished(stage, 1, engine, metrics=metrics, name="OutsideTurns", resume_attempt=0)
    assert len(engine.asked) == num_turns
    assert sample.resumed_from is None
    assert metrics.rollout_resumptions.labels("anew")._value.get() == 1


def test_an_environment_that_says_something_else_is_gone_on_with_live_from_there(stage: Stage) -> None:
    left_behind(stage, 0, at_turn=3)
    engine = Remembering()
    sample = finished(stage, 1, engine, name="ForgetfulTurns", resume_attempt=0)
    # The first turn was asked for after the same text, the second one after another.
    assert len(engine.asked) == num_turns - 1
    assert sample.resumed_from == "1.1"
    whole = [*sample.prompt_token_ids.tolist(), *sample.token_ids.tolist()]
    assert all(asked == whole[: len(asked)] for asked in engine.asked)


def test_records_that_are_no_turns_are_passed_over(stage: Stage) -> None:
    left_behind(stage, 0, at_turn=3)
    headers = [("type", b"Turn"), ("group_id", b"0"), ("replica", b"0"), ("attempt", b"0")]
    stage.producer.send(stage.topics.turns, 0, b"rubbish", headers=headers).offset(10)
    assert len(turns(stage)) == 3
    engine = Remembering()
    finished(stage, 1, engine, resume_attempt=0)
    assert len(engine.asked) == num_turns - 3


def test_an_evaluation_keeps_no_turns(stage: Stage) -> None:
    """Its group is the number of a prompt: a training rollout of that number would take them for its own."""
    stage.worker_id = "worker-0"
    settings = replace(stage.settings(), durable_turns=True)
    evaluation = a_game(stage, kind=Kind.EVALUATION, pinned_version=0, evaluation="greedy")
    with running(stage, rewards=EpisodeRewards(), episodes=games(), engine=Remembering(), settings=settings):
        stage.give_grant()
        stage.order(evaluation)
        (sample,) = stage.samples(1, stage.topics.evaluations)
    assert (sample.status, sample.error_message) == (Status.FINISHED, None)
    assert turns(stage) == []


def test_a_turn_without_a_token_fails_its_rollout_and_leaves_the_worker_alone(stage: Stage) -> None:
    stage.worker_id = "worker-0"
    settings = replace(stage.settings(), durable_turns=True)
    with running(stage, rewards=EpisodeRewards(), episodes=games(), engine=Speechless(), settings=settings):
        stage.give_grant()
        stage.order(a_game(stage))
        (sample,) = stage.samples(1)
    assert (sample.status, sample.error_class) == (Status.FAILED, "NoTokens")
    assert turns(stage) == []


@pytest.mark.parametrize("forged", ["an aborted one", "negative token ids"])
def test_a_turn_that_no_worker_can_have_written_is_passed_over(stage: Stage, forged: str) -> None:
    left_behind(stage, 0, at_turn=2)
    # Somebody writes turns of a newer attempt than the one that was lost, and the second of them cannot be.
    first, second = (replace(turn, task_id="1.9", attempt=1) for turn in turns(stage))
    value = encode(second)
    if forged == "an aborted one":
        value = value[:-1] + b"\x04"
    else:
        value = value.replace(second.token_ids.tobytes(), int32_array(-3 - second.token_ids).tobytes())
    for each, turn in ((encode(first), first), (value, second)):
        stage.producer.send(stage.topics.turns, 0, each, headers=headers_of(turn)).offset(10)
    engine = Remembering()
    sample = finished(stage, 2, engine, resume_attempt=0)
    assert sample.resumed_from == "1.9"
    assert len(engine.asked) == num_turns - 1


def test_turns_that_are_not_served_again_make_a_rollout_no_older(stage: Stage) -> None:
    """The dispatcher takes back what is too old: what only might have been taken over is not to count."""
    left_behind(stage, 0, at_turn=3)
    stage.publish(1)
    engine = SimulatedEngine(tokens_per_second=50, max_context_tokens=256)
    other_game = replace(a_game(stage).prompt, reward_inputs_json=json.dumps({"seed": 8}))
    sample = finished(stage, 1, engine, resume_attempt=0, prompt=other_game)
    assert (sample.resumed_from, sample.first_version) == (None, 1)
    reported = [
        status.first_versions[sample.task_id]
        for status in stage.read(stage.topics.workers)
        if isinstance(status, WorkerStatus) and sample.task_id in status.first_versions
    ]
    assert set(reported) == {1}


def test_turns_of_other_weights_than_a_version_has_are_not_taken_over(stage: Stage) -> None:
    """Their tokens would stand in the sample under the weights that this worker knows."""
    left_behind(stage, 0, at_turn=2)
    for turn in turns(stage):
        others = tuple(replace(segment, weights_digest="ab" * 8) for segment in turn.segments)
        stage.send(stage.topics.turns, replace(turn, task_id="1.9", attempt=1, segments=others))
    engine = Remembering()
    sample = finished(stage, 2, engine, resume_attempt=0)
    assert (sample.resumed_from, len(engine.asked)) == (None, num_turns)
