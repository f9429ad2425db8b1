"""Calls of an environment that are late, cancelled or hang: what they cost, and whom."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from support.pool_scenarios import environments, long_seconds, misbehaving, plays_on, until, with_pool

from producers.environments.names import EnvironmentSpec
from rollog.kernel.errors import EnvironmentFailed, EnvironmentTimedOut
from rollog.kernel.processes import exists

if TYPE_CHECKING:
    from pathlib import Path

    from producers.environments.pool import EnvironmentPool, EpisodeHandle


async def play_and_hang(episode: EpisodeHandle) -> None:
    await episode.reset()
    await episode.step("hang")


@pytest.mark.parametrize("place", ["reset", "step"])
def test_one_that_hangs_fails_alone_and_its_process_is_killed_when_the_others_have_left(place: str) -> None:
    async def scenario(pool: EnvironmentPool) -> None:
        # The first process is there and idle, so that the time-out begins when the call does.
        bystander = await pool.open(misbehaving(), 0)
        await bystander.reset()
        episode = await pool.open(misbehaving(at_reset="hang" if place == "reset" else ""), 1)
        pids = pool.pids
        with pytest.raises(EnvironmentTimedOut, match=f"a call of {place} took longer than 3 s"):
            await play_and_hang(episode)
        assert (await bystander.step("a")).observation.text == "you said a"
        # A place is free, and not in the process that may hang.
        assert await plays_on(pool)
        assert pool.pids != pids
        counts = pool.counts
        assert (counts.opened, counts.failed, counts.timed_out, counts.kills) == (3, 1, 1, 0)
        await bystander.close()
        await until(lambda: not any(map(exists, pids)))
        assert (counts.failed, counts.kills) == (1, 1)
        assert await plays_on(pool)

    with_pool(
        scenario,
        step_timeout_seconds=3,
        reset_timeout_seconds=3 if place == "reset" else long_seconds,
        episodes_per_process=2,
    )


def test_as_many_processes_that_may_hang_are_kept_as_there_are_others() -> None:
    async def scenario(pool: EnvironmentPool) -> None:
        bystanders = []
        for seed in range(3):
            bystanders.append(await pool.open(misbehaving(), seed))
            await bystanders[-1].reset()
            episode = await pool.open(misbehaving(), 7)
            with pytest.raises(EnvironmentTimedOut):
                await play_and_hang(episode)
        with pytest.raises(EnvironmentFailed, match="calls hang in too many processes"):
            await bystanders[0].step("a")
        assert (await bystanders[2].step("a")).observation.text == "you said a"

    with_pool(scenario, step_timeout_seconds=0.5, episodes_per_process=8)


@pytest.mark.parametrize("waits_in", ["reset", "step"])
def test_a_cancelled_call_is_cancelled_in_an_environment_whose_methods_can_be(
    tmp_path: Path, waits_in: str
) -> None:
    async def scenario(pool: EnvironmentPool) -> None:
        waiting = EnvironmentSpec(
            environment=f"{environments}:Waiting",
            parameters={"directory": str(tmp_path), "waits_in": waits_in},
        )
        episode = await pool.open(waiting, 1)
        call = asyncio.ensure_future(play_and_hang(episode))
        await until((tmp_path / "waits").exists)
        call.cancel()
        await asyncio.wait([call])
        # There is one place, and the time-outs are long.
        assert await plays_on(pool)
        assert (tmp_path / "cancelled").exists()
        assert (tmp_path / "closed").exists()
        assert (pool.counts.cancelled, pool.counts.failed, pool.counts.kills) == (1, 1, 0)

    with_pool(scenario, episodes_per_process=1)


def test_a_late_call_of_methods_that_can_be_cancelled_costs_no_process(tmp_path: Path) -> None:
    async def scenario(pool: EnvironmentPool) -> None:
        bystander = await pool.open(misbehaving(), 1)
        await bystander.reset()
        spec = EnvironmentSpec(environment=f"{environments}:Waiting", parameters={"directory": str(tmp_path)})
        pids = pool.pids
        with pytest.raises(EnvironmentTimedOut, match="a call of step took longer than 1 s"):
            await play_and_hang(await pool.open(spec, 1))
        await until((tmp_path / "closed").exists)
        await until(lambda: not pool._groups[None].processes[0].is_doubtful)
        await bystander.close()
        assert await plays_on(pool)
        assert (pool.pids, pool.counts.kills) == (pids, 0)

    with_pool(scenario, step_timeout_seconds=1)


def test_a_call_that_is_cancelled_fails_the_episode_and_gives_its_place_back(tmp_path: Path) -> None:
    gate = tmp_path / "gate"

    async def scenario(pool: EnvironmentPool) -> None:
        episode = await pool.open(misbehaving(), 1)
        await episode.reset()
        step = asyncio.ensure_future(episode.step(f"sleep {gate}"))
        await asyncio.sleep(0)
        step.cancel()
        await asyncio.wait([step])
        with pytest.raises(EnvironmentFailed, match="was cancelled"):
            await episode.step("more")
        await episode.close()
        gate.touch()
        assert await plays_on(pool)

    with_pool(scenario, episodes_per_process=1)


def test_a_cancelled_step_that_hangs_costs_its_process_all_the_same(tmp_path: Path) -> None:
    async def scenario(pool: EnvironmentPool) -> None:
        episode = await pool.open(misbehaving(), 1)
        await episode.reset()
        step = asyncio.ensure_future(episode.step(f"hang {tmp_path / 'hangs'}"))
        await until((tmp_path / "hangs").exists)
        step.cancel()
        await until(lambda: pool.counts.kills == 1)
        assert await plays_on(pool)

    with_pool(scenario, episodes_per_process=1, step_timeout_seconds=1)


def test_an_episode_that_is_cancelled_while_its_process_starts_leaves_its_neighbours_alone() -> None:
    async def scenario(pool: EnvironmentPool) -> None:
        first, second = [asyncio.ensure_future(pool.open(misbehaving(), seed)) for seed in range(2)]
        # From here on the process could be written to, and has not said yet that it is there.
        await until(lambda: pool.pids and pool._groups[None].processes[0]._transport)
        first.cancel()
        await asyncio.wait([first])
        assert (await (await second).reset()).text == "seed 1"
        # Its place is free again.
        assert await plays_on(pool)
        assert (pool.counts.failed, pool.counts.kills) == (1, 0)

    with_pool(scenario, episodes_per_process=2)


def test_closing_has_its_own_time_after_the_call_that_is_under_way(tmp_path: Path) -> None:
    gate = tmp_path / "gate"

    async def scenario(pool: EnvironmentPool) -> None:
        neighbour = await pool.open(misbehaving(), 1)
        episode = await pool.open(misbehaving(at_reset=f"sleep {gate}"), 2)
        reset = asyncio.ensure_future(episode.reset())
        await asyncio.sleep(0)
        reset.cancel()
        # What is waited for is the time itself: that of a close goes by while the reset is under way.
        await asyncio.sleep(2.2)
        gate.touch()
        assert (await neighbour.reset()).text == "seed 1"
        assert await plays_on(pool)
        assert pool.counts.kills == 0

    with_pool(scenario, episodes_per_process=2, step_timeout_seconds=2)


def test_one_that_hangs_while_it_is_closed_after_a_cancelled_call_is_killed(tmp_path: Path) -> None:
    gate = tmp_path / "gate"

    async def scenario(pool: EnvironmentPool) -> None:
        episode = await pool.open(misbehaving(at_reset=f"sleep {gate}", on_close="hang"), 1)
        reset = asyncio.ensure_future(episode.reset())
        await asyncio.sleep(0)
        reset.cancel()
        await asyncio.wait([reset])
        gate.touch()
        await until(lambda: pool.counts.kills == 1)

    with_pool(scenario, step_timeout_seconds=1)


def test_one_that_hangs_while_it_is_closed_is_killed() -> None:
    async def scenario(pool: EnvironmentPool) -> None:
        episode = await pool.open(misbehaving(on_close="hang"), 1)
        await episode.reset()
        await episode.close()
        assert await plays_on(pool)
        assert (pool.counts.kills, pool.counts.failed) == (1, 0)

    with_pool(scenario, episodes_per_process=1, step_timeout_seconds=2)
