"""Whole episodes by a real worker: environments in their processes, a simulated engine, the broker in memory."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from support.waiting import wait_until
from support.worker_thread import Stage, a_stage, running, slow_engine

from producers.engines.simulated import SimulatedEngine, simulated_logprob
from producers.environments.names import EnvironmentSpec
from producers.environments.pool import EnvironmentPool
from producers.environments.process import EnvironmentLimits
from producers.rewards.episodes import EpisodeRewards
from producers.rollout.episodes import Episodes, EpisodeSettings
from producers.rollout.prompts import ByteTokenizer
from producers.rollout.speech import TextSpeech
from rollog.kernel.broker.memory import MemoryBroker
from rollog.kernel.broker.topics import RunTopics
from rollog.kernel.errors import WeightsError
from schemas import (
    Cancel,
    CancelReason,
    FinishReason,
    RolloutTask,
    SamplingParameters,
    Status,
    WeightVersion,
    WorkerState,
    num_turns,
    turn_numbers,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from producers.engines.ports import Generation, GenerationRequest
    from schemas import Sample

pytestmark = pytest.mark.timeout(120)

game = "support.episodes_for_tests:Turns"


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    with a_stage(MemoryBroker(), RunTopics("rollog", "first"), tmp_path) as stage:
        yield stage


def episodes(
    *,
    max_turns: int = 10,
    with_turn_rewards: bool = False,
    limits: EnvironmentLimits | None = None,
    **parameters: Any,
) -> Episodes:
    return Episodes(
        pool=EnvironmentPool(limits or EnvironmentLimits(num_processes=1)),
        settings=EpisodeSettings(
            environment=EnvironmentSpec(environment=game, parameters=parameters),
            max_turns=max_turns,
            with_turn_rewards=with_turn_rewards,
        ),
        speech=lambda: TextSpeech(ByteTokenizer()),
    )


def an_episode(stage: Stage, seed: object = 7, group: int = 0, max_tokens: int = 12) -> RolloutTask:
    task = stage.task(group, sampling=SamplingParameters(temperature=1.0, max_tokens=max_tokens))
    inputs = json.dumps({"seed": seed})
    return replace(
        task, reward="", prompt=replace(task.prompt, text="", messages_json=None, reward_inputs_json=inputs)
    )


def played(
    stage: Stage, played_episodes: Episodes, *tasks: RolloutTask, engine: SimulatedEngine | None = None
) -> list[Sample]:
    with running(stage, rewards=EpisodeRewards(), episodes=played_episodes, engine=engine):
        stage.give_grant()
        for task in tasks:
            stage.order(task)
        return stage.samples(len(tasks))


def text_of(token_ids: Any) -> str:
    return ByteTokenizer().decode(token_ids.tolist())


def test_an_episode_is_one_sample_of_turns_with_the_environments_text_between_them(stage: Stage) -> None:
    (sample,) = played(stage, episodes(), an_episode(stage))
    assert (sample.status, sample.error_message) == (Status.FINISHED, None)
    assert sample.finish_reason is FinishReason.STOP
    assert text_of(sample.prompt_token_ids) == "game 7:"
    assert num_turns(sample.loss_mask) == 3
    context = [text_of(sample.token_ids[turn_numbers(sample.loss_mask) == -1])]
    assert context == ["turn 1turn 2"]
    assert sample.reward == pytest.approx(7.75)
    assert sample.reward_components == {"turns": 3.0}
    assert sample.turn_rewards == ()


def test_each_token_of_a_turn_has_the_logprob_that_the_engine_gave_and_context_has_none(stage: Stage) -> None:
    (sample,) = played(stage, episodes(), an_episode(stage))
    for token, logprob, mask in zip(
        sample.token_ids, sample.behaviour_logprobs, sample.loss_mask, strict=True
    ):
        assert logprob == pytest.approx(simulated_logprob(int(token), 0) if mask else 0.0)
    assert [(each.version, each.start, each.end) for each in sample.segments] == [(0, 0, sample.num_tokens)]


def test_each_turn_was_generated_from_exactly_the_ids_before_it(stage: Stage) -> None:
    asked: dict[str, list[int]] = {}

    def remember(request: Any) -> None:
        asked[request.request_id] = list(request.prompt_token_ids)

    (sample,) = played(
        stage,
        episodes(),
        an_episode(stage),
        engine=SimulatedEngine(max_context_tokens=256, failure_of=remember),
    )
    ids = [*sample.prompt_token_ids.tolist(), *sample.token_ids.tolist()]
    numbers = turn_numbers(sample.loss_mask).tolist()
    starts = [len(sample.prompt_token_ids) + numbers.index(turn) for turn in range(3)]
    assert list(asked.values()) == [ids[:start] for start in starts]


def test_rewards_of_turns_are_in_the_record_where_they_are_trained(stage: Stage) -> None:
    (sample,) = played(stage, episodes(with_turn_rewards=True), an_episode(stage))
    assert sample.turn_rewards == pytest.approx((0.25, 0.25, 7.25))


def test_the_bound_on_turns_cuts_an_episode_off_with_the_rewards_it_has(stage: Stage) -> None:
    (sample,) = played(stage, episodes(max_turns=2, num_turns=50), an_episode(stage))
    assert sample.finish_reason is FinishReason.LENGTH
    assert num_turns(sample.loss_mask) == 2
    assert sample.reward == pytest.approx(0.5)


def test_the_end_of_the_context_cuts_an_episode_off(stage: Stage) -> None:
    (sample,) = played(stage, episodes(max_turns=500, num_turns=500), an_episode(stage))
    assert (sample.status, sample.finish_reason) == (Status.FINISHED, FinishReason.LENGTH)
    assert len(sample.prompt_token_ids) + sample.num_tokens <= 256
    assert num_turns(sample.loss_mask) > 5


def test_the_same_seeds_give_the_same_episode(stage: Stage) -> None:
    tasks = [replace(an_episode(stage, group=group), seed=5) for group in range(2)]
    first, second = played(stage, episodes(), *tasks)
    assert first.token_ids.tolist() == second.token_ids.tolist()


@pytest.mark.parametrize(
    ("does", "error", "said"),
    [
        ("raise", "EnvironmentFailed", "KeyError"),
        ("die", "EnvironmentProcessEnded", ""),
        ("hang", "EnvironmentTimedOut", "0.5 s"),
        ("say nothing", "EnvironmentFailed", "has no token"),
    ],
)
def test_an_environment_that_fails_fails_its_episode_and_counts_what_was_generated(
    stage: Stage, does: str, error: str, said: str
) -> None:
    limits = EnvironmentLimits(num_processes=1, step_timeout_seconds=0.5)
    (sample,) = played(stage, episodes(limits=limits, at_turn=2, does=does), an_episode(stage))
    assert (sample.status, sample.error_class) == (Status.FAILED, error)
    assert said in (sample.error_message or "")
    assert sample.wasted_tokens > 0


def test_an_episode_without_a_seed_fails_by_name(stage: Stage) -> None:
    (sample,) = played(stage, episodes(), an_episode(stage, seed="x"))
    assert sample.error_class == "DataError"
    assert "its field `seed` is 'x'" in (sample.error_message or "")


@pytest.mark.parametrize("is_generating", [True, False])
def test_a_cancelled_episode_ends_whether_engine_or_environment_is_at_work(
    stage: Stage, *, is_generating: bool
) -> None:
    engine = slow_engine() if is_generating else None
    limits = EnvironmentLimits(num_processes=1, step_timeout_seconds=600)
    hanging = episodes(limits=limits, at_turn=1, does="hang")
    task = an_episode(stage, max_tokens=200)
    with running(stage, rewards=EpisodeRewards(), episodes=hanging, engine=engine):
        stage.give_grant()
        stage.order(task)
        stage.wait_for_status(lambda status: bool(status.first_versions), "started")
        if not is_generating:
            wait_until(
                lambda: any(status.num_running for status in stage.statuses()), message="a running episode"
            )
        stage.order(
            Cancel(
                task_id=task.task_id, epoch=task.epoch, grant_id=task.grant_id, reason=CancelReason.SURPLUS
            )
        )
        sample = stage.sample()
    assert (sample.status, sample.cancel_reason) == (Status.CANCELLED, "surplus")


class Counting(SimulatedEngine):
    """Knows how many turns it has made, so that a test can wait for the middle of an episode."""

    num_turns = 0

    async def generate(self, request: GenerationRequest) -> Generation:
        generation = await super().generate(request)
        self.num_turns += 1
        return generation


def sample_of_two_versions(stage: Stage, engine: Counting) -> Sample:
    """An episode in the middle of which version 1 is published."""
    stage.give_grant()
    stage.wait_until_serving(0)
    stage.order(an_episode(stage))
    wait_until(lambda: engine.num_turns >= 2, message="two turns")
    stage.publish(1)
    return stage.sample()


def test_a_reload_goes_on_while_episodes_are_played_and_segments_name_both_versions(stage: Stage) -> None:
    engine = Counting(tokens_per_second=60, max_context_tokens=256, length_of=lambda _: 6)
    with running(
        stage, rewards=EpisodeRewards(), episodes=episodes(num_turns=16, max_turns=16), engine=engine
    ):
        sample = sample_of_two_versions(stage, engine)
    assert sample.status is Status.FINISHED
    assert [each.version for each in sample.segments] == [0, 1]
    for token, logprob, mask, place in zip(
        sample.token_ids, sample.behaviour_logprobs, sample.loss_mask, range(sample.num_tokens), strict=True
    ):
        version = next(each.version for each in sample.segments if each.start <= place < each.end)
        assert logprob == pytest.approx(simulated_logprob(int(token), version) if mask else 0.0)


class FailsToLoad(Counting):
    """Its second load fails once, and leaves it without weights, as vLLM does."""

    num_loads = 0

    async def load_weights(self, path: Path, version: int) -> None:
        self.num_loads += 1
        if self.num_loads == 2:
            self._version = None
            raise WeightsError("out of memory")
        await super().load_weights(path, version)


@pytest.mark.parametrize("mode", ["keep", "drain"])
def test_an_episode_between_two_turns_outlives_a_load_that_fails(stage: Stage, mode: str) -> None:
    engine = FailsToLoad(tokens_per_second=40, max_context_tokens=256, length_of=lambda _: 4)
    with running(
        stage,
        rewards=EpisodeRewards(),
        episodes=episodes(num_turns=20, max_turns=20),
        engine=engine,
        settings=stage.settings(reload=mode),
    ):
        sample = sample_of_two_versions(stage, engine)
    assert (sample.status, sample.error_message) == (Status.FINISHED, None)
    assert engine.num_loads == 3
    assert [each.version for each in sample.segments] == [0, 1]


def test_a_drain_waits_for_calls_and_not_for_an_environment_that_computes(stage: Stage) -> None:
    engine = Counting(tokens_per_second=500, max_context_tokens=256, length_of=lambda _: 4)
    limits = EnvironmentLimits(num_processes=1, step_timeout_seconds=600)
    hanging = episodes(limits=limits, at_turn=2, does="hang", num_turns=4)
    with running(
        stage,
        rewards=EpisodeRewards(),
        episodes=hanging,
        engine=engine,
        settings=stage.settings(reload="drain"),
    ):
        stage.give_grant()
        stage.wait_until_serving(0)
        stage.order(an_episode(stage))
        wait_until(lambda: engine.num_turns >= 2, message="two turns")
        stage.publish(1)
        stage.wait_until_serving(1)
        assert not stage.read(stage.topics.samples)
    assert stage.sample().status is Status.CANCELLED


def test_an_episode_plays_on_under_the_old_weights_while_a_drain_cannot_fetch_new_ones(stage: Stage) -> None:
    engine = Counting(tokens_per_second=200, max_context_tokens=256, length_of=lambda _: 4)
    with running(
        stage,
        rewards=EpisodeRewards(),
        episodes=episodes(num_turns=20, max_turns=20),
        engine=engine,
        settings=stage.settings(reload="drain", load_attempts=1000),
    ):
        stage.give_grant()
        stage.wait_until_serving(0)
        stage.order(an_episode(stage))
        wait_until(lambda: engine.num_turns >= 2, message="two turns")
        lost = WeightVersion(version=1, sha256="f" * 64, name="v1.safetensors", num_bytes=9)
        stage.send(stage.topics.weights, lost)
        stage.wait_for_status(lambda status: status.error is not None, "fetch failed")
        sample = stage.sample()
    assert (sample.status, [each.version for each in sample.segments]) == (Status.FINISHED, [0])


def test_a_held_episode_can_be_cancelled(stage: Stage) -> None:
    class NeverLoadsAgain(SimulatedEngine):
        async def load_weights(self, path: Path, version: int) -> None:
            if version > 0:
                self._version = None
                raise WeightsError("out of memory")
            await super().load_weights(path, version)

    engine = NeverLoadsAgain(tokens_per_second=200, max_context_tokens=256, length_of=lambda _: 4)
    settings = stage.settings(load_attempts=1000)
    task = an_episode(stage)
    with running(
        stage,
        rewards=EpisodeRewards(),
        episodes=episodes(num_turns=50, max_turns=50),
        engine=engine,
        settings=settings,
    ):
        stage.give_grant()
        stage.wait_until_serving(0)
        stage.order(task)
        stage.wait_for_status(lambda status: bool(status.first_versions), "started")
        stage.publish(1)
        stage.wait_for_status(lambda status: status.state is WorkerState.LOAD_FAILED, "load failed")
        stage.order(
            Cancel(
                task_id=task.task_id, epoch=task.epoch, grant_id=task.grant_id, reason=CancelReason.SURPLUS
            )
        )
        sample = stage.sample()
    assert (sample.status, sample.cancel_reason) == (Status.CANCELLED, "surplus")


def test_a_task_that_is_cancelled_is_cancelled_in_its_environment(stage: Stage, tmp_path: Path) -> None:
    waiting = replace(
        episodes().settings,
        environment=EnvironmentSpec(
            environment="support.environments_for_tests:Waiting", parameters={"directory": str(tmp_path)}
        ),
    )
    task = an_episode(stage)
    with running(stage, rewards=EpisodeRewards(), episodes=replace(episodes(), settings=waiting)):
        stage.give_grant()
        stage.order(task)
        wait_until((tmp_path / "waits").exists, message="the environment is at a step")
        stage.order(
            Cancel(
                task_id=task.task_id, epoch=task.epoch, grant_id=task.grant_id, reason=CancelReason.SURPLUS
            )
        )
        sample = stage.sample()
        # The time-out of a step is 30 s, and this wait is shorter.
        wait_until((tmp_path / "cancelled").exists, message="the step is cancelled in the environment")
    assert (sample.status, sample.cancel_reason) == (Status.CANCELLED, "surplus")
