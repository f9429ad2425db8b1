"""Whatever is said in a house, everything in it is in exactly one place."""

from __future__ import annotations

import re
from collections import Counter
from copy import deepcopy

from hypothesis import given
from hypothesis import strategies as st

from producers.environments.adapters.household import Household
from producers.environments.household.commands import Command, command_of
from producers.environments.household.world import World, nothing_happens

verbs = ["go", "open", "close", "take", "put", "clean", "heat", "cool", "use", "examine", "inventory", "look"]
steps = st.lists(
    st.one_of(
        # An admissible command, by its number; a verb with names that need not fit; any text.
        st.integers(0, 10_000),
        st.tuples(st.sampled_from(verbs), st.integers(0, 10_000), st.integers(0, 10_000)),
        st.text(max_size=40),
    ),
    max_size=40,
)


def line_of(world: World, step: int | tuple[str, int, int] | str) -> str:
    if isinstance(step, str):
        return step
    if isinstance(step, int):
        commands = world.admissible()
        return commands[step % len(commands)].text
    names = [*world.receptacles, *world.objects, *world.lamps]
    verb, first, second = step
    return Command(verb, (names[first % len(names)], names[second % len(names)])).text


def told_places(world: World) -> Counter[str]:
    """How often each object is told of, when all is opened and looked into, and at the hand."""
    world = deepcopy(world)
    told = [world.do(Command("inventory"))]
    for place in world.receptacles:
        world.do(Command("go", (place,)))
        world.do(Command("open", (place,)))
        told.append(world.do(Command("examine", (place,))).partition(" Beside it")[0])
    return Counter(re.findall(r"[a-z]+ \d+", " ".join(told)))


@given(seed=st.integers(0, 2**63 - 1), num_rooms=st.integers(1, 3), said=steps)
def test_each_object_stays_in_exactly_one_place(
    seed: int, num_rooms: int, said: list[int | tuple[str, int, int] | str]
) -> None:
    environment = Household(num_rooms=num_rooms)
    environment.reset(seed)
    world = environment._world
    objects, lamps = Counter(list(world.objects)), {name: lamp.place for name, lamp in world.lamps.items()}
    for step in said:
        before = deepcopy(world)
        line = line_of(world, step)
        answer = world.do(command_of(line))
        assert len(answer) < 1_000
        if answer == nothing_happens:
            assert world == before
        assert sum(thing.place is None for thing in world.objects.values()) <= 1
    assert told_places(world) == objects
    assert {name: lamp.place for name, lamp in world.lamps.items()} == lamps


@given(seed=st.integers(0, 2**63 - 1), num_rooms=st.integers(1, 3))
def test_every_admissible_command_is_read_back_from_its_text(seed: int, num_rooms: int) -> None:
    environment = Household(num_rooms=num_rooms)
    environment.reset(seed)
    for command in environment._world.admissible():
        assert command_of(command.text) == command
