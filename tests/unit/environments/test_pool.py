"""The pool: whatever an environment does, its episode fails and the others go on."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from support.waiting import wait_until

from producers.environments.episode import Bounds
from producers.environments.host import serve
from producers.environments.names import EnvironmentSpec
from producers.environments.pool import EnvironmentPool
from producers.environments.ports import Observation, StepResult
from producers.environments.process import EnvironmentLimits
from rollog.kernel.errors import DataError, EnvironmentFailed, EnvironmentTimedOut
from rollog.kernel.processes import exists

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from producers.environments.pool import EpisodeHandle

module = "support.environments_for_tests"
root = Path(__file__).parents[3]
long_seconds = 60.0


def misbehaving(**parameters: Any) -> EnvironmentSpec:
    return EnvironmentSpec(environment=f"{module}:Misbehaving", parameters=parameters)


def with_pool(
    scenario: Callable[[EnvironmentPool], Coroutine[Any, Any, Any]],
    *,
    num_processes: int = 1,
    step_timeout_seconds: float = long_seconds,
    reset_timeout_seconds: float = long_seconds,
    **limits: Any,
) -> Any:
    async def run() -> Any:
        pool = EnvironmentPool(
            EnvironmentLimits(
                num_processes=num_processes,
                step_timeout_seconds=step_timeout_seconds,
                reset_timeout_seconds=reset_timeout_seconds,
                **limits,
            )
        )
        try:
            return await asyncio.wait_for(scenario(pool), 60)
        finally:
            pids = pool.pids
            await pool.close()
            assert [pid for pid in pids if exists(pid)] == []
            assert pool.pids == []

    return asyncio.run(run())


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110  # what is waited for happens in another process
            await asyncio.sleep(0.005)


async def play_and_hang(episode: EpisodeHandle) -> None:
    await episode.reset()
    await episode.step("hang")


async def plays_on(pool: EnvironmentPool) -> bool:
    """Whether another episode is played as if nothing had happened."""
    episode = await pool.open(misbehaving(), 5)
    first, last = await episode.reset(), await episode.step("end")
    await episode.close()
    return first.text == "seed 5" and last.is_over


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
            environment=f"{module}:Waiting", parameters={"directory": str(tmp_path), "waits_in": waits_in}
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
        spec = EnvironmentSpec(environment=f"{module}:Waiting", parameters={"directory": str(tmp_path)})
        pids = pool.pids
        with pytest.raises(EnvironmentTimedOut, match="a call of step took longer than 1 s"):
            await play_and_hang(await pool.open(spec, 1))
        await until((tmp_path / "closed").exists)
        await until(lambda: not pool._groups[None].processes[0].is_doubtful)
        await bystander.close()
        assert await plays_on(pool)
        assert (pool.pids, pool.counts.kills) == (pids, 0)

    with_pool(scenario, step_timeout_seconds=1)


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


def test_what_async_methods_have_begun_goes_on_between_calls(tmp_path: Path) -> None:
    file = tmp_path / "touched"

    async def scenario(pool: EnvironmentPool) -> None:
        spec = EnvironmentSpec(environment=f"{module}:AsyncEcho", parameters={"touches": str(file)})
        episode = await pool.open(spec, 1)
        await episode.reset()
        # No call is under way while its task makes the file.
        await until(file.exists)
        assert (await episode.step("a")).observation.text == "you said a"
        await episode.close()

    with_pool(scenario)


def test_a_snapshot_goes_on_in_another_process() -> None:
    async def scenario(pool: EnvironmentPool) -> None:
        spec = EnvironmentSpec(environment=f"{module}:Counter")
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
        episode = await pool.open(EnvironmentSpec(environment=f"{module}:Together"), 1)
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


@pytest.mark.parametrize(
    ("environment", "parameters", "message"),
    [
        ("gess_number", {}, "is no name of an environment .guess_number, nim"),
        ("nowhere:made", {}, "cannot be imported by .*python.*No module named 'nowhere'"),
        (f"{module}:no_such_name", {}, "cannot be imported"),
        (f"{module}:module", {}, "cannot be imported"),
        (f"{module}:Lacking", {}, "of type Lacking, which lacks declaration, reset, step, close"),
        (f"{module}:no_snapshots", {}, "lacks snapshot"),
        ("guess_number", {"largest": 0}, "largest = 0 is below 1"),
        ("guess_number", {"largst": 3}, "unexpected keyword argument 'largst'"),
    ],
)
def test_what_cannot_be_made_is_told_before_anything_is_played(
    environment: str, parameters: dict[str, Any], message: str
) -> None:
    async def scenario(pool: EnvironmentPool) -> None:
        with pytest.raises(DataError, match=message):
            await pool.check(EnvironmentSpec(environment=environment, parameters=parameters))

    with_pool(scenario)


@pytest.mark.parametrize(("num_times", "is_given_up"), [(2, False), (9, True)])
def test_a_process_that_ends_during_the_check_is_no_failure_unless_it_does_so_again_and_again(
    tmp_path: Path, num_times: int, is_given_up: bool
) -> None:
    parameters = {"mark": str(tmp_path / "made"), "num_times": num_times}
    spec = EnvironmentSpec(environment=f"{module}:dies_while_it_is_made", parameters=parameters)

    async def scenario(pool: EnvironmentPool) -> None:
        if is_given_up:
            with pytest.raises(DataError, match="process ended with status 3"):
                await pool.check(spec)
        else:
            assert (await pool.check(spec)).restore == "replay"

    with_pool(scenario)


def test_what_can_be_made_says_what_it_is() -> None:
    async def scenario(pool: EnvironmentPool) -> None:
        declaration = await pool.check(EnvironmentSpec(environment="nim"))
        assert (declaration.num_seats, declaration.restore) == (2, "replay")

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


def test_another_interpreter_sees_nothing_of_ours_but_the_host(tmp_path: Path) -> None:
    (tmp_path / "elsewhere.py").write_text(source_of_one_elsewhere, encoding="utf-8")
    python = tmp_path / "python"
    # As bare as another interpreter is: without this one's packages.
    python.write_text(f'#!/bin/sh\nexec {sys._base_executable} -S "$@"\n', encoding="utf-8")  # type: ignore[attr-defined]
    python.chmod(0o755)

    async def scenario(pool: EnvironmentPool) -> None:
        here = Path.cwd()
        os.chdir(tmp_path)
        try:
            own = EnvironmentSpec(environment="elsewhere:Elsewhere", python=str(python))
            episode = await pool.open(own, 1)
            assert (await episode.reset()).text == "[]"
            built_in = await pool.open(EnvironmentSpec(environment="guess_number", python=str(python)), 1)
            assert (await built_in.reset()).text.startswith("I think of a number")
        finally:
            os.chdir(here)

    with_pool(scenario)


source_of_one_elsewhere = """
import importlib.util
from producers.environments.ports import Declaration, Observation, StepResult

class Elsewhere:
    declaration = Declaration()

    def reset(self, seed):
        names = ("rollog", "schemas", "numpy", "ports", "host")
        return Observation.of(str([name for name in names if importlib.util.find_spec(name)]))

    def step(self, action):
        return StepResult.of("", done=True)

    def close(self):
        pass
"""


@pytest.mark.parametrize("python", ["/nowhere/python", "/bin/false"])
def test_an_interpreter_that_cannot_run_the_host_is_named(python: str) -> None:
    async def scenario(pool: EnvironmentPool) -> None:
        with pytest.raises(DataError, match=f"ended with status .*python = '{python}', .* Python 3.10"):
            await pool.check(EnvironmentSpec(environment="nim", python=python))

    with_pool(scenario)


@pytest.mark.parametrize(
    ("limit", "value"), [("num_processes", 0), ("episodes_per_process", -1), ("step_timeout_seconds", 0.0)]
)
def test_limits_that_leave_no_room_are_refused(limit: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"{limit} = {value}"):
        EnvironmentLimits(**{limit: value})  # type: ignore[arg-type]  # each has its type
