"""A house in which a task can be fulfilled, and is not from the beginning."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from producers.environments.household.things import can_close, room_lamps, room_objects, rooms
from producers.environments.household.world import Lamp, Receptacle, Thing, World

if TYPE_CHECKING:
    import random

    from producers.environments.household.tasks import Task

most_rooms = 3
"""More could not be searched in 50 turns."""
_fewest_others, _most_others = 5, 9
"""Objects of a room besides those of the task."""


def house_of(task: Task, draw: random.Random, num_rooms: int) -> World:
    """A house of so many rooms; one has everything that the task takes, and what is in the others is drawn."""
    main = draw.choice(task.possible_rooms)
    others = draw.sample([room for room in rooms if room != main], num_rooms - 1)
    chosen = draw.sample([main, *others], num_rooms)
    receptacles = _receptacles(chosen, draw)
    objects = _placed(_object_kinds(chosen, main, task, draw), receptacles, task, draw)
    return World(receptacles, objects, _lamps(chosen, receptacles, draw))


def _receptacles(chosen: list[str], draw: random.Random) -> dict[str, Receptacle]:
    """Numbered through the whole house."""
    numbers: Counter[str] = Counter()
    receptacles = {}
    for room in chosen:
        for kind, (fewest, most) in rooms[room].items():
            for _ in range(draw.randint(fewest, most)):
                numbers[kind] += 1
                receptacles[f"{kind} {numbers[kind]}"] = Receptacle(kind, room, kind not in can_close)
    return receptacles


def _object_kinds(chosen: list[str], main: str, task: Task, draw: random.Random) -> list[tuple[str, str]]:
    """Room and kind of each object, in an order that tells nothing."""
    needed = 2 if task.kind == "place_two" else 1
    found = [(main, task.object)] * needed
    for room in chosen:
        found += [
            (room, draw.choice(room_objects[room])) for _ in range(draw.randint(_fewest_others, _most_others))
        ]
    draw.shuffle(found)
    return found


def _placed(
    found: list[tuple[str, str]], receptacles: dict[str, Receptacle], task: Task, draw: random.Random
) -> dict[str, Thing]:
    """Each somewhere in its room; none of the task's kind where the task wants it."""
    numbers: Counter[str] = Counter()
    objects = {}
    for room, kind in found:
        places = [
            name
            for name, receptacle in receptacles.items()
            if receptacle.room == room and not (kind == task.object and receptacle.kind == task.target)
        ]
        numbers[kind] += 1
        objects[f"{kind} {numbers[kind]}"] = Thing(kind, draw.choice(places))
    return objects


def _lamps(chosen: list[str], receptacles: dict[str, Receptacle], draw: random.Random) -> dict[str, Lamp]:
    numbers: Counter[str] = Counter()
    lamps = {}
    for room in chosen:
        for kind, stands_at in room_lamps[room].items():
            places = [
                name for name, each in receptacles.items() if each.room == room and each.kind in stands_at
            ]
            numbers[kind] += 1
            lamps[f"{kind} {numbers[kind]}"] = Lamp(kind, draw.choice(places))
    return lamps
