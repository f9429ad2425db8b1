"""Agents that play the games of text in a house, from what they see alone: a command for each text."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from producers.environments.household.things import plural, room_objects, tools

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Generator

_treatments = {"clean": "clean", "hot": "heat", "cold": "cool"}
_singular = {plural(name): name for names in room_objects.values() for name in names}


def expert(first: str) -> Callable[[str], str]:
    """An agent that searches the receptacles in their order; it asks for nothing more when it believes to be done."""
    play = _looking(first) if "Look at" in first else _putting(first)
    begun = False

    def act(seen: str) -> str:
        nonlocal begun
        if not begun:
            begun = True
            return next(play)
        return play.send(seen)

    return act


def random_admissible(rng: random.Random) -> Callable[[str], str]:
    """An agent that draws from the commands it is shown."""
    return lambda seen: rng.choice(listed_commands(seen))


def listed_commands(seen: str) -> list[str]:
    """The commands that a text ends with."""
    return seen.rpartition("\nYou can: ")[2].rstrip(".").split(", ")


def listed_places(first: str) -> list[str]:
    """The receptacles of the house, as the first text names them."""
    return re.findall(r"[a-z]+ \d+", "".join(re.findall(r"^The .* has .*$", first, flags=re.MULTILINE)))


def _visit(place: str) -> Generator[str, str, str]:
    """Go there, and open it where it is closed; gives what is seen then."""
    seen = yield f"go to {place}"
    if "It is closed." in seen:
        seen = yield f"open {place}"
    return seen


def _of_kind(kind: str, seen: str) -> list[str]:
    return re.findall(rf"\b{kind} \d+", seen.partition("you see:")[2])


def _looking(first: str) -> Generator[str, str, None]:
    task = re.search(r"Look at an? (\w+) under an? (\w+)\.", first)
    assert task is not None
    lamp, lamp_place, held = "", "", False
    for place in listed_places(first):
        seen = yield from _visit(place)
        if found := _of_kind(task[2], seen):
            lamp, lamp_place = found[0], place
        if not held and (found := _of_kind(task[1], seen)):
            yield f"take {found[0]} from {place}"
            held = True
        if held and lamp:
            if place != lamp_place:
                yield f"go to {lamp_place}"
            yield f"use {lamp}"


def _putting(first: str) -> Generator[str, str, None]:
    task = re.search(r"Put (?:an?|two) (?:(clean|hot|cold) )?(.+) (?:in|on) (?:an?|one) (\w+)\.", first)
    assert task is not None
    treatment, kind = _treatments.get(task[1], ""), _singular.get(task[2], task[2])
    places = listed_places(first)
    goal = next(place for place in places if place.split()[0] == task[3])
    for place in places:
        seen = yield from _visit(place)
        if place.split()[0] == task[3]:
            continue
        for index, name in enumerate(_of_kind(kind, seen)):
            if index:
                yield f"go to {place}"
            yield f"take {name} from {place}"
            if treatment:
                tool = next(each for each in places if each.split()[0] == tools[treatment])
                if tool != place:
                    yield f"go to {tool}"
                yield f"{treatment} {name} with {tool}"
            yield from _visit(goal)
            yield f"put {name} in/on {goal}"
