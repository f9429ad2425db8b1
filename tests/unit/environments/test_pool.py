"""The pool: whatever an environment does, its episode fails and the others go on."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from support.pool_scenarios import misbehaving, plays_on, until, with_pool
from support.waiting import wait_until

from producers.environments.episode import Bounds
from producers.environments.host import serve
from producers.environments.process import EnvironmentLimits
from rollog.kernel.errors import EnvironmentFailed
from rollog.kernel.processes import exists

if TYPE_CHECKING:
    from producers.environments.pool import EnvironmentPool

root = Path(__file__).parents[3]


def test_an_environment_that_raises_fails_its_episode_and_says_where() -> None:
    async def scenario(pool: EnvironmentPool) -> None:
        other = await pool.open(misbehaving(), 1)
        await other.reset()
        episode = await pool.open(misbehaving(), 2)
        await episode.reset()
        with pytest.raises(EnvironmentFailed, match=r"KeyError at environments_for_tests.py, line \d+: 'x'"):
            await episode.step("raise x")
        with pytest.raises(EnvironmentFailed, match="KeyError"):
            await episode.step("again")
        assert (await other.step("a")).observation.text == "you said a"
        assert (pool.counts.failed, pool.counts.kills) == (1, 0)

    with_pool(scenario)


@pytest.mark.parametrize(
    ("action", "message"),
    [
        ("no result", "no StepResult, but str"),
        ("bad reward", "reward of seat 0 is no finite number"),
        ("wrong seat", "no seat '3': seats are 0 to 0"),
        ("large info", "info takes .* above 16384"),
        ("huge 600", "takes 1200 bytes, above max_observation_bytes = 1000"),
        ("surrogate", "half a surrogate pair"),
        ("exit", "SystemExit"),
    ],
)
def test_what_the_port_does_not_allow_fails_the_episode_alone(action: str, message: str) -> None:
    async def scenario(pool: EnvironmentPool) -> None:
        episode = await pool.open(misbehaving(), 1)
        await episode.reset()
        pids = pool.pids
        with pytest.raises(EnvironmentFailed, match=message):
            await episode.step(action)
        assert await plays_on(pool)
        assert pool.pids == pids

    with_pool(scenario, max_observation_bytes=1000)


def test_the_episodes_of_other_processes_are_not_disturbed() -> None:
    async def scenario(pool: EnvironmentPool) -> None:
        bad, good = [await pool.open(misbehaving(), seed) for seed in range(2)]
        await bad.reset()
        await good.reset()
        assert len(set(pool.pids)) == 2
        with pytest.raises(EnvironmentFailed, match="ended with status 7"):
            await bad.step("crash")
        assert (await good.step("a")).observation.text == "you said a"
        assert pool.counts.failed == 1

    with_pool(scenario, num_processes=2)


def test_a_crash_while_the_environment_is_made_or_reset_is_its_own() -> None:
    async def scenario(pool: EnvironmentPool) -> None:
        episode = await pool.open(misbehaving(at_reset="crash"), 1)
        with pytest.raises(
            EnvironmentFailed, match=r"'support.*', turn 0: the environment's process ended with status 7"
        ):
            await episode.reset()
        assert await plays_on(pool)

    with_pool(scenario)


def test_a_flood_of_output_and_lines_that_look_like_answers_disturb_nothing() -> None:
    async def scenario(pool: EnvironmentPool) -> None:
        episode = await pool.open(misbehaving(at_reset="print 2000"), 1)
        assert (await episode.reset()).text == "seed 1"
        assert (await episode.step("print 2000")).observation.text == "you said print 2000"
        assert pool.counts.failed == 0

    with_pool(scenario)


@pytest.mark.parametrize(
    ("what", "message"),
    [("line", "Expecting value"), ("flood", "a line of more than"), ("brackets", "recursion depth")],
)
def test_a_process_that_writes_anything_else_to_its_socket_is_killed(what: str, message: str) -> None:
    async def scenario(pool: EnvironmentPool) -> None:
        episode = await pool.open(misbehaving(), 1)
        await episode.reset()
        with pytest.raises(EnvironmentFailed, match=f"something else than an answer.*{message}"):
            await episode.step(f"garbage {what}")
        assert pool.counts.kills == 1
        assert await plays_on(pool)

    with_pool(scenario, max_snapshot_bytes=1000)


def test_many_episodes_are_played_at_once_and_a_slow_one_holds_up_none(tmp_path: Path) -> None:
    gate = tmp_path / "gate"

    async def play(pool: EnvironmentPool, seed: int, num_turns: int) -> int:
        episode = await pool.open(misbehaving(), seed)
        await episode.reset()
        for turn in range(num_turns):
            assert (await episode.step(f"{turn}")).observation.text == f"you said {turn}"
        await episode.close()
        return seed

    async def scenario(pool: EnvironmentPool) -> None:
        slow = [await pool.open(misbehaving(), seed) for seed in range(4)]
        for episode in slow:
            await episode.reset()
        steps = [asyncio.ensure_future(episode.step(f"sleep {gate}")) for episode in slow]
        assert await asyncio.gather(*(play(pool, seed, seed % 7) for seed in range(60))) == list(range(60))
        assert not any(step.done() for step in steps)
        gate.touch()
        assert len(await asyncio.gather(*steps)) == 4

    with_pool(scenario, num_processes=2, episodes_per_process=8)


def test_an_episode_waits_for_room_and_gets_it_when_another_is_closed() -> None:
    async def scenario(pool: EnvironmentPool) -> None:
        first, second = [await pool.open(misbehaving(), seed) for seed in range(2)]
        third = asyncio.ensure_future(pool.open(misbehaving(), 3))
        fourth = asyncio.ensure_future(pool.open(misbehaving(), 4))
        await first.reset()
        assert not third.done()
        third.cancel()
        await first.close()
        assert (await (await fourth).reset()).text == "seed 4"
        await second.close()

    with_pool(scenario, episodes_per_process=2)


def test_the_host_answers_calls_of_an_episode_that_it_does_not_know() -> None:
    ours, theirs = socket.socketpair()
    with theirs, ours, ours.makefile("r", encoding="utf-8") as answers:
        for number, operation in enumerate(("close", "step")):
            ours.sendall(
                json.dumps({"call": number, "episode": "x", "operation": operation}).encode() + b"\n"
            )
        ours.shutdown(socket.SHUT_WR)
        serve(theirs, Bounds())
        _, *lines = [json.loads(answers.readline()) for _ in range(3)]
    assert lines == [{"call": 0}, {"call": 1, "error": "step of an episode that is not open"}]


def test_closing_ends_every_process_with_what_it_started_and_every_call() -> None:
    async def scenario(pool: EnvironmentPool) -> list[int]:
        episodes = [await pool.open(misbehaving(), seed) for seed in range(2)]
        for episode in episodes:
            await episode.reset()
        orphan = int((await episodes[0].step("orphan")).observation.text)
        hanging = asyncio.ensure_future(episodes[1].step("hang"))
        waiting = asyncio.ensure_future(pool.open(misbehaving(), 3))
        await asyncio.sleep(0)
        pids = [*pool.pids, orphan]
        await pool.close()
        for call in (hanging, waiting):
            with pytest.raises(EnvironmentFailed, match="the worker is leaving"):
                await call
        with pytest.raises(EnvironmentFailed, match="the worker is leaving"):
            await pool.open(misbehaving(), 4)
        assert pool.counts.kills == 0
        return pids

    pids: list[int] = with_pool(scenario, num_processes=2, episodes_per_process=1)
    assert len(pids) == 3
    wait_until(lambda: not any(map(exists, pids)), message="all processes are gone")


def test_closing_while_a_process_starts_ends_it() -> None:
    async def scenario(pool: EnvironmentPool) -> None:
        opening = asyncio.ensure_future(pool.open(misbehaving(), 1))
        await until(lambda: pool.pids)
        await pool.close()
        with pytest.raises(EnvironmentFailed, match="the worker is leaving"):
            await opening

    with_pool(scenario)


def test_a_worker_that_is_killed_leaves_no_process_behind() -> None:
    command = [sys.executable, "-c", source_of_a_worker]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": f"{root}/tests:{root}"}
    ) as worker:
        assert worker.stdout is not None
        pid = int(worker.stdout.readline())
        assert exists(pid)
        worker.kill()
    wait_until(lambda: not exists(pid), message="the environment's process is gone")


source_of_a_worker = """
import asyncio
from producers.environments.names import EnvironmentSpec
from producers.environments.pool import EnvironmentPool

async def work():
    pool = EnvironmentPool()
    episode = await pool.open(EnvironmentSpec(environment="support.environments_for_tests:Misbehaving"), 1)
    await episode.reset()
    print(*pool.pids, flush=True)
    await episode.step("hang")

asyncio.run(work())
"""


@pytest.mark.parametrize(
    ("limit", "value"), [("num_processes", 0), ("episodes_per_process", -1), ("step_timeout_seconds", 0.0)]
)
def test_limits_that_leave_no_room_are_refused(limit: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"{limit} = {value}"):
        EnvironmentLimits(**{limit: value})  # type: ignore[arg-type]  # each has its type
