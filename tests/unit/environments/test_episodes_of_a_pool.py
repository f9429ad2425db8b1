"""One episode of the pool: what it is asked, what it answers, what it refuses."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from support.pool_scenarios import environments, misbehaving, plays_on, until, with_pool

from producers.environments.names import EnvironmentSpec
from producers.environments.ports import Observation, StepResult
from rollog.kernel.errors import DataError, EnvironmentFailed

if TYPE_CHECKING:
    from pathlib import Path

    from producers.environments.pool import EnvironmentPool


def test_an_episode_is_played_from_reset_to_end() -> None:
    async def scenario(pool: EnvironmentPool) -> None:
        episode = await pool.open(misbehaving(), 7)
        assert (episode.declaration.restore, episode.declaration.max_turns) == ("replay", 1000)
        assert await episode.reset() == Observation.of("seed 7")
        assert await episode.step("ü\n\x00") == StepResult.of("you said ü\n\x00", reward=0.5)
        result = await episode.step("end")
        assert (result.is_over, result.done_seats, result.truncated) == (True, frozenset({0}), False)
        with pytest.raises(ValueError, match="step after the end"):
            await episode.step("more")
        assert (await episode.reset()).text == "seed 7"
        await episode.close()
        with pytest.raises(ValueError, match="episode that is closed"):
            await episode.step("more")
        assert pool.counts.failed == 0

    with_pool(scenario)


def test_what_async_methods_have_begun_goes_on_between_calls(tmp_path: Path) -> None:
    file = tmp_path / "touched"

    async def scenario(pool: EnvironmentPool) -> None:
        spec = EnvironmentSpec(environment=f"{environments}:AsyncEcho", parameters={"touches": str(file)})
        episode = await pool.open(spec, 1)
        await episode.reset()
        # No call is under way while its task makes the file.
        await until(file.exists)
        assert (await episode.step("a")).observation.text == "you said a"
        await episode.close()

    with_pool(scenario)


def test_a_snapshot_goes_on_in_another_process() -> None:
    async def scenario(pool: EnvironmentPool) -> None:
        spec = EnvironmentSpec(environment=f"{environments}:Counter")
        first, second = await pool.open(spec, 10), await pool.open(spec, 0)
        await first.reset()
        await first.step("5")
        snapshot = await first.snapshot()
        assert (await second.restore(snapshot)).text == "15"
        assert (second.num_turns, (await second.step("1")).observation.text) == (1, "16")
        assert not (await second.step("1")).truncated
        # The turns before the snapshot count.
        assert (await second.step("1")).truncated
        with pytest.raises(EnvironmentFailed, match="nothing to go on from"):
            await second.snapshot()

    with_pool(scenario, num_processes=2)


def test_seats_act_together_and_leave_one_by_one() -> None:
    async def scenario(pool: EnvironmentPool) -> None:
        episode = await pool.open(EnvironmentSpec(environment=f"{environments}:Together"), 1)
        assert (await episode.reset()).to_act == (0, 1, 2)
        for wrong in ("one", {0: "a", 1: "b"}, {0: "a", 1: "b", 2: "c", 3: "d"}):
            with pytest.raises(ValueError, match=r"actions came for seats .*; those to act are \[0, 1, 2\]"):
                await episode.step(wrong)
        result = await episode.step({0: "a", 1: "b", 2: "c"})
        assert (result.observation.texts, result.observation.to_act) == ({1: "a b c", 2: "a b c"}, (1, 2))
        assert (result.rewards, result.done_seats) == ({0: 1.0, 1: 1.0, 2: 1.0}, frozenset({0}))
        await episode.step({1: "b", 2: "c"})
        last = await episode.step({1: "b", 2: "c"})
        assert (last.is_over, last.truncated, last.done_seats) == (True, True, frozenset({0, 1, 2}))

    with_pool(scenario)


def test_calls_of_the_callers_own_fault_are_refused_before_they_are_made() -> None:
    async def scenario(pool: EnvironmentPool) -> None:
        episode = await pool.open(misbehaving(), 1)
        with pytest.raises(ValueError, match="before reset"):
            await episode.step("a")
        await episode.reset()
        step = asyncio.ensure_future(episode.step("print 5000"))
        await asyncio.sleep(0)
        with pytest.raises(ValueError, match="while another call"):
            await episode.step("b")
        await step

    with_pool(scenario)


def test_an_action_that_is_too_large_fails_its_episode_alone() -> None:
    async def scenario(pool: EnvironmentPool) -> None:
        episode = await pool.open(misbehaving(), 1)
        await episode.reset()
        with pytest.raises(
            EnvironmentFailed, match="turn 0: an action takes 1048577 bytes, more than 1048576"
        ):
            await episode.step("x" * (1 << 20 | 1))
        with pytest.raises(EnvironmentFailed, match="an action takes"):
            await episode.step("x")
        assert await plays_on(pool)
        assert (pool.counts.failed, pool.counts.kills) == (1, 0)

    with_pool(scenario, episodes_per_process=1)


def test_seeds_and_parameters_that_cannot_be_sent_fail_the_episode() -> None:
    async def scenario(pool: EnvironmentPool) -> None:
        with pytest.raises(EnvironmentFailed, match="seed = -1 is not between 0 and"):
            await pool.open(misbehaving(), -1)
        with pytest.raises(EnvironmentFailed, match="is no JSON object"):
            await pool.open(misbehaving(at_reset=object()), 1)
        with pytest.raises(DataError, match="is no JSON object"):
            await pool.check(misbehaving(at_reset=object()))
        assert await plays_on(pool)

    with_pool(scenario, episodes_per_process=1)


def test_a_first_observation_in_which_nobody_acts_fails_the_episode() -> None:
    async def scenario(pool: EnvironmentPool) -> None:
        episode = await pool.open(misbehaving(), 1)
        # What a process may send, whatever its host checks.
        for to_act, message in (([], "lets nobody act"), ([0], "sees nothing")):
            with pytest.raises(EnvironmentFailed, match=message):
                episode._began({"observation": {"texts": {}, "to_act": to_act, "info": {}}})
        with pytest.raises(EnvironmentFailed, match="nobody act"):
            await episode.reset()
        assert await plays_on(pool)

    with_pool(scenario, episodes_per_process=1)
