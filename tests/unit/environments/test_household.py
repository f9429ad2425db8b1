"""The games of text in a house: who solves them, what is held out, what commands do."""

from __future__ import annotations

import random
import re
from copy import deepcopy
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from support.household_agents import expert, listed_commands, random_admissible

from producers.dispatcher.episode_seeds import held_out_seeds
from producers.environments.adapters.household import Household
from producers.environments.adapters.household import held_out_seeds as seeds_that_hold_out
from producers.environments.household.commands import command_of
from producers.environments.household.houses import most_rooms
from producers.environments.household.tasks import Task, is_fulfilled, kinds, tasks
from producers.environments.household.things import can_close, room_objects, rooms, treatable
from producers.environments.household.world import Lamp, Receptacle, Thing, World, nothing_happens
from producers.environments.names import EnvironmentSpec, make_environment

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from producers.environments.ports import Observation

page = (Path(__file__).parents[3] / "docs" / "environments.md").read_text(encoding="utf-8")


def reward_of(environment: Household, seed: int, agent_of: Callable[[str], Callable[[str], str]]) -> float:
    """What an agent gets in as many turns as the environment declares."""
    seen = environment.reset(seed).text
    agent = agent_of(seen)
    for _ in range(environment.declaration.max_turns):
        result = environment.step(agent(seen))
        if result.is_over:
            return result.reward
        assert result.reward == 0.0
        seen = result.observation.text
    return 0.0


def share_at_random(environment: Household) -> float:
    """Of a hundred games, played by draws that are the same each time."""
    rewards = [
        reward_of(environment, seed, lambda _, seed=seed: random_admissible(random.Random(seed)))  # type: ignore[misc]
        for seed in range(100)
    ]
    return sum(rewards) / len(rewards)


def combination(first: Observation) -> tuple[str, str, str]:
    return first.info["kind"], first.info["object"], first.info["target"]


def combinations(environment: Household, seeds: Iterable[int]) -> set[tuple[str, str, str]]:
    return {combination(environment.reset(seed)) for seed in seeds}


@pytest.mark.parametrize("held_out", [False, True])
@pytest.mark.parametrize("kind", kinds)
def test_an_expert_who_only_sees_the_text_solves_every_seed(kind: str, *, held_out: bool) -> None:
    environment = Household(kinds=[kind], held_out=held_out)
    unsolved = [seed for seed in range(300) if reward_of(environment, seed, expert) != 1.0]
    assert unsolved == []


@pytest.mark.parametrize("num_rooms", [1, most_rooms])
def test_it_solves_the_smallest_and_the_largest_houses_too(num_rooms: int) -> None:
    environment = Household(num_rooms=num_rooms)
    assert [seed for seed in range(200) if reward_of(environment, seed, expert) != 1.0] == []


def test_the_largest_house_is_searched_with_twelve_turns_left() -> None:
    turns = sorted(
        sum(most * (1 + (kind in can_close)) for kind, (_, most) in room.items()) for room in rooms.values()
    )
    assert sum(turns[-most_rooms:]) <= Household().declaration.max_turns - 12


def test_who_acts_at_random_solves_few() -> None:
    assert share_at_random(Household(show_commands=True)) <= 0.01
    easiest = Household(kinds=["look"], num_rooms=1, show_commands=True)
    assert 0.0 < share_at_random(easiest) <= 0.1


def test_held_out_games_are_others_than_those_of_training() -> None:
    near, far = range(2_000), range(held_out_seeds, held_out_seeds + 500)
    training = combinations(Household(held_out=False), near)
    held_out = combinations(Household(held_out=True), near)
    assert len(training) > 500
    assert len(held_out) > 150
    assert training.isdisjoint(held_out)
    assert combinations(Household(held_out=False), far).isdisjoint(held_out)
    assert combinations(Household(held_out=True), far).isdisjoint(training)


def test_the_seeds_of_a_run_decide_where_nothing_is_said() -> None:
    environment = Household()
    assert seeds_that_hold_out == held_out_seeds
    assert not any(environment.reset(seed).info["held_out"] for seed in range(100))
    assert all(environment.reset(held_out_seeds + seed).info["held_out"] for seed in range(100))


def test_every_kind_of_task_has_some_of_both_sides() -> None:
    for kind in kinds:
        training, held_out = tasks(kind, held_out=False), tasks(kind, held_out=True)
        assert len(held_out) > 5
        assert len(training) > 2 * len(held_out)


def test_only_the_chosen_kinds_are_drawn() -> None:
    environment = Household(kinds=["heat", "look"])
    assert {environment.reset(seed).info["kind"] for seed in range(50)} == {"heat", "look"}
    every = Household()
    assert {every.reset(seed).info["kind"] for seed in range(100)} == set(kinds)


def test_no_game_is_won_before_it_begins() -> None:
    environment = Household(num_rooms=most_rooms)
    for seed in range(500):
        environment.reset(seed)
        assert not is_fulfilled(environment._task, environment._world)


def test_another_seed_gives_another_game() -> None:
    environment = Household()
    assert len({environment.reset(seed).text for seed in range(200)}) > 195


def test_names_of_things_are_spelled_alike_wherever_they_stand() -> None:
    objects = {name for names in room_objects.values() for name in names}
    assert all(names <= objects for names in treatable.values())
    assert can_close <= {kind for room in rooms.values() for kind in room}


@pytest.mark.parametrize(
    "action",
    [
        "",
        " \n\t ",
        "go",
        "go to",
        "go to fridge",
        "go to fridge 01",
        "go to fridge 99",
        "go to fridge -1",
        "go to fridge 1 and open it",
        "open the fridge 1",
        "take apple 1",
        "take apple 1 from",
        "put apple 1",
        "__import__('os').abort()",
        "look; look",
        "look\x00",
        "look " + "x" * 1_000_000,
        "look" + " " * 1_000_000 + "x",
        "go to " * 100_000,
        "go to fridge " + "1" * 100_000,
        "go to fridge ¹",
        "go to fridge ١",
        "\u202elook\u202c",
        "{self} %s {0}",
        "nonsense\nlook",
    ],
)
def test_what_is_no_command_changes_nothing(action: str) -> None:
    environment = Household(kinds=["cool"], num_rooms=1)
    environment.reset(1)
    environment.step("go to fridge 1")
    before = deepcopy(environment._world)
    result = environment.step(action)
    assert (result.observation.text, result.reward, result.is_over) == (nothing_happens, 0.0, False)
    assert environment._world == before


def a_world(**changes: Any) -> World:
    """A kitchen, at whose fridge one stands, with an egg in the hand unless something else is said."""
    return World(
        receptacles={
            "fridge 1": Receptacle("fridge", "kitchen", is_open=False),
            "microwave 1": Receptacle("microwave", "kitchen", is_open=False),
            "sinkbasin 1": Receptacle("sinkbasin", "kitchen", is_open=True),
            "desk 1": Receptacle("desk", "kitchen", is_open=True),
            "desk 2": Receptacle("desk", "kitchen", is_open=True),
        },
        objects={
            "egg 1": Thing("egg", changes.get("egg_is")),
            "egg 2": Thing("egg", "desk 1"),
            "apple 1": Thing("apple", "fridge 1"),
            "book 1": Thing("book", "desk 1"),
        },
        lamps={"desklamp 1": Lamp("desklamp", "desk 1")},
        here=changes.get("here", "fridge 1"),
    )


def after(world: World, *lines: str) -> list[str]:
    return [world.do(command_of(line)) for line in lines]


@pytest.mark.parametrize(
    ("world", "line"),
    [
        (a_world(), "go to fridge 1"),
        (a_world(), "close fridge 1"),
        (a_world(), "open microwave 1"),
        (a_world(here="desk 1"), "open desk 1"),
        (a_world(here=None), "open fridge 1"),
        (a_world(egg_is="fridge 1"), "take egg 1 from fridge 1"),
        (a_world(egg_is="desk 2"), "take egg 1 from desk 2"),
        (a_world(egg_is="desk 2"), "take egg 2 from fridge 1"),
        (a_world(here="desk 1"), "take book 1 from desk 1"),
        (a_world(), "put egg 1 in/on fridge 1"),
        (a_world(), "put egg 1 in/on desk 1"),
        (a_world(here="desk 1"), "put egg 2 in/on desk 1"),
        (a_world(), "heat egg 1 with fridge 1"),
        (a_world(here="microwave 1"), "heat egg 2 with microwave 1"),
        (a_world(here="desk 1"), "heat egg 1 with microwave 1"),
        (a_world(), "use desklamp 1"),
        (a_world(), "examine apple 1"),
        (a_world(), "examine desk 1"),
    ],
)
def test_what_cannot_be_done_is_not_done(world: World, line: str) -> None:
    before = deepcopy(world)
    assert after(world, line) == [nothing_happens]
    assert world == before


def test_a_thing_that_cannot_be_heated_is_not() -> None:
    world = a_world(egg_is="desk 2", here="desk 1")
    *_, answer = after(world, "take book 1 from desk 1", "go to microwave 1", "heat book 1 with microwave 1")
    assert answer == nothing_happens


def test_what_is_closed_shows_nothing_until_it_is_opened() -> None:
    world = a_world(here="desk 1")
    assert after(
        world, "Go to  FRIDGE 1\nlook", "open fridge 1", "put egg 1 in fridge 1", "examine fridge 1"
    ) == [
        "You stand at fridge 1. It is closed.",
        "fridge 1 is now open. In it you see: apple 1.",
        "egg 1 is now in fridge 1.",
        "In it you see: apple 1, egg 1.",
    ]


def test_what_is_hot_is_cold_no_more_and_stays_clean() -> None:
    world = a_world(here="sinkbasin 1")
    lines = ["clean egg 1 with sinkbasin 1", "go to fridge 1", "cool egg 1 with fridge 1", "examine egg 1"]
    lines += ["go to microwave 1", "heat egg 1 with microwave 1", "examine egg 1", "inventory"]
    said = after(world, *lines)
    assert [said[3], *said[6:]] == [
        "egg 1 is an egg, clean, cold.",
        "egg 1 is an egg, clean, hot.",
        "In your hand: egg 1.",
    ]


def test_a_lamp_serves_the_thing_in_the_hand_alone() -> None:
    task = Task("look", "egg", "desklamp")
    world = a_world(egg_is="desk 1", here="desk 1")
    after(world, "use desklamp 1")
    assert not is_fulfilled(task, world)
    after(world, "take egg 2 from desk 1")
    assert is_fulfilled(task, world)
    after(world, "go to fridge 1")
    assert not is_fulfilled(task, world)


def test_two_of_a_kind_have_to_be_in_one_place() -> None:
    task = Task("place_two", "egg", "desk")
    world = a_world(here="desk 2")
    after(world, "put egg 1 on desk 2")
    assert not is_fulfilled(task, world)
    after(world, "go to desk 1", "take egg 2 from desk 1")
    assert not is_fulfilled(task, world)
    after(world, "go to desk 2", "put egg 2 on desk 2")
    assert is_fulfilled(task, world)


def test_a_task_that_asks_for_heat_is_not_fulfilled_cold() -> None:
    world = a_world(here="microwave 1")
    task = Task("heat", "egg", "desk")
    assert not is_fulfilled(task, world)
    after(world, "heat egg 1 with microwave 1")
    assert not is_fulfilled(task, world)
    after(world, "go to desk 2", "put egg 1 on desk 2")
    assert is_fulfilled(task, world)


def test_the_commands_that_are_shown_are_those_that_do_something() -> None:
    environment = Household(show_commands=True, num_rooms=1)
    draw = random.Random(1)
    seen = environment.reset(5).text
    for _ in range(40):
        for command in listed_commands(seen):
            assert deepcopy(environment._world).do(command_of(command)) != nothing_happens
        seen = environment.step(draw.choice(listed_commands(seen))).observation.text


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"kinds": ["fly"]}, "kinds = 'fly' is no kind of task; they are place, place_two"),
        ({"kinds": []}, "has to be a list of one kind of task or more"),
        ({"kinds": "heat"}, "has to be a list of one kind of task or more"),
        ({"num_rooms": 0}, "num_rooms = 0 has to be 1 to 3"),
        ({"num_rooms": 4}, "num_rooms = 4 has to be 1 to 3"),
        ({"max_turns": 0}, "max_turns = 0 has to be 1 or more"),
    ],
)
def test_a_parameter_that_makes_no_house_is_refused(parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Household(**parameters)


def test_the_episode_on_the_page_goes_as_it_stands_there() -> None:
    match = re.search(
        r"```python\n(Env[^`]*\"household\"[^`]*)```\n.*?```text\n(.*?)```", page, flags=re.DOTALL
    )
    assert match is not None
    spec = eval(match[1], {"EnvironmentSpec": EnvironmentSpec})  # our own page
    environment: Any = make_environment(spec.environment, spec.parameters)
    first, *turns = match[2].split("\n> ")
    seen = environment.reset(0).text
    assert " ".join(first.split()) == " ".join(seen.split())
    rewards = []
    for turn in turns:
        command, _, answer = turn.partition("\n")
        result = environment.step(command)
        assert answer.strip() == result.observation.text
        rewards.append(result.reward)
    assert rewards == [0.0] * (len(turns) - 1) + [1.0]
