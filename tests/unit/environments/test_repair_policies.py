"""Who solves what over many seeds, in processes of a pool and in a rollout worker."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from support.repairing_agents import at_random, knowing, searching, submit, the_task
from support.scripted_engine import ScriptedEngine
from support.waiting import wait_until
from support.worker_thread import a_stage, running

from producers.environments.names import EnvironmentSpec
from producers.environments.pool import EnvironmentPool
from producers.environments.process import EnvironmentLimits
from producers.rewards.episodes import EpisodeRewards
from producers.rollout.episodes import Episodes, EpisodeSettings
from producers.rollout.prompts import ByteTokenizer
from producers.rollout.speech import TextSpeech
from rollog.kernel.broker.memory import MemoryBroker
from rollog.kernel.broker.topics import RunTopics
from schemas import SamplingParameters, Status, num_turns

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Agent = Callable[[str], str]

spec = EnvironmentSpec(environment="repository_repair", parameters={"command_seconds": 30.0})
limits = EnvironmentLimits(num_processes=2, step_timeout_seconds=100.0, episodes_per_process=3)
num_seeds = 40


def solved_by(agent_of: Callable[[int], Agent], seeds: range) -> int:
    """How many seeds an agent solves, several at once in two processes."""

    async def play(pool: EnvironmentPool, seed: int, agent: Agent) -> float:
        episode = await pool.open(spec, seed)
        observation, total = await episode.reset(), 0.0
        while observation.to_act:
            result = await episode.step(agent(observation.text))
            observation, total = result.observation, total + result.reward
        await episode.close()
        return total

    agents = {seed: agent_of(seed) for seed in seeds}

    async def scenario() -> list[float]:
        pool = EnvironmentPool(limits)
        try:
            totals = await asyncio.gather(*(play(pool, seed, agent) for seed, agent in agents.items()))
            assert (pool.counts.failed, pool.counts.kills) == (0, 0)
            return totals
        finally:
            await pool.close()

    return round(sum(asyncio.run(scenario())))


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_an_agent_that_knows_the_defects_solves_all_seeds() -> None:
    assert solved_by(lambda seed: knowing(the_task(seed)), range(num_seeds)) == num_seeds


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_an_agent_that_only_sees_tests_fail_solves_most_seeds() -> None:
    """Some changes make the tests pass that are seen and not those that are hidden."""
    assert solved_by(lambda _: searching(), range(num_seeds)) >= 0.75 * num_seeds


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_an_agent_that_acts_at_random_solves_no_seed() -> None:
    assert solved_by(at_random, range(num_seeds)) == 0


@pytest.mark.timeout(120)
@pytest.mark.parametrize("repairs", [True, False])
def test_a_rollout_worker_plays_it_with_an_engine_that_says_what_an_agent_says(
    tmp_path: Path, *, repairs: bool
) -> None:
    seed = 4
    agent = knowing(the_task(seed)) if repairs else lambda _seen: submit
    played = Episodes(
        pool=EnvironmentPool(limits),
        settings=EpisodeSettings(environment=spec, max_turns=8),
        speech=lambda: TextSpeech(ByteTokenizer()),
    )
    parts: dict[str, Any] = {"rewards": EpisodeRewards(), "episodes": played, "engine": ScriptedEngine(agent)}
    with a_stage(MemoryBroker(), RunTopics("rollog", "first"), tmp_path) as stage, running(stage, **parts):
        stage.give_grant()
        task = stage.task(0, sampling=SamplingParameters(temperature=1.0, max_tokens=2_000))
        inputs = json.dumps({"seed": seed})
        prompt = replace(task.prompt, text="", messages_json=None, reward_inputs_json=inputs)
        stage.order(replace(task, reward="", prompt=prompt))
        wait_until(lambda: stage.read(stage.topics.samples), 100.0, "the episode's sample")
        sample = stage.sample()
    assert (sample.status, sample.error_message) == (Status.FINISHED, None)
    assert (sample.reward, num_turns(sample.loss_mask)) == ((1.0, 4) if repairs else (0.0, 1))
