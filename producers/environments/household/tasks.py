"""What a game asks for, and which combinations are held out.

| kind      | asks for                                                | is fulfilled when                             |
| ---       | ---                                                     | ---                                           |
| place     | an object in or on a kind of receptacle                 | one of the kind is there                      |
| place_two | two of a kind in or on one receptacle of a kind         | two of the kind are in the same one           |
| clean     | a cleaned object there                                  | one that was cleaned is there                 |
| heat      | a heated one                                            | one that is hot is there                      |
| cool      | a cooled one                                            | one that is cold is there                     |
| look      | an object under a lamp                                  | it is in the hand, at a lamp of the kind, lit |
"""

from __future__ import annotations

import zlib
from collections import Counter
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from producers.environments.household.things import (
    plural,
    preposition,
    room_lamps,
    room_objects,
    rooms,
    tools,
    treatable,
    with_article,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from producers.environments.household.world import World

kinds = ("place", "place_two", "clean", "heat", "cool", "look")
_num_folds = 6
_done_words = {"clean": "clean", "heat": "hot", "cool": "cold"}


@dataclass(frozen=True, slots=True)
class Task:
    """A combination of one of `kinds`, a kind of object, and a kind of receptacle or, to look, of lamp."""

    kind: str
    object: str
    target: str

    @property
    def is_held_out(self) -> bool:
        """Whether no training game has this combination: one in six, by its checksum."""
        return zlib.crc32(f"{self.kind},{self.object},{self.target}".encode()) % _num_folds == 0

    @property
    def text(self) -> str:
        """What the agent is asked to do."""
        if self.kind == "look":
            return f"Look at {with_article(self.object)} under {with_article(self.target)}."
        where = preposition(self.target)
        if self.kind == "place_two":
            return f"Put two {plural(self.object)} {where} one {self.target}."
        words = " ".join((*filter(None, [_done_words.get(self.kind)]), self.object))
        return f"Put {with_article(words)} {where} {with_article(self.target)}."

    @property
    def possible_rooms(self) -> tuple[str, ...]:
        """The rooms that have everything it takes."""
        return tuple(
            room
            for room in rooms
            if self.object in room_objects[room]
            and (self.target in room_lamps[room] if self.kind == "look" else self.target in rooms[room])
            and (self.kind not in tools or tools[self.kind] in rooms[room])
        )


@cache
def tasks(kind: str, *, held_out: bool) -> tuple[Task, ...]:
    """All tasks of a kind on one side of the split, in a fixed order. Raises ValueError for an unknown kind."""
    if kind not in kinds:
        raise ValueError(f"kinds = {kind!r} is no kind of task; they are {', '.join(kinds)}")
    return tuple(task for task in _all_tasks(kind) if task.is_held_out is held_out)


def _all_tasks(kind: str) -> Iterator[Task]:
    """Every combination that one room can hold; nothing is put where it was treated."""
    objects = sorted({name for names in room_objects.values() for name in names})
    places = room_lamps if kind == "look" else rooms
    targets = sorted({name for names in places.values() for name in names})
    for name in objects:
        if kind not in tools or name in treatable[kind]:
            for target in targets:
                task = Task(kind, name, target)
                if target != tools.get(kind) and task.possible_rooms:
                    yield task


def is_fulfilled(task: Task, world: World) -> bool:
    """Whether the world is as the task wants it."""
    if task.kind == "look":
        held = world.held
        lit = any(
            world.lamps[lamp].kind == task.target and world.lamps[lamp].is_lit for lamp in world.lamps_here
        )
        return held is not None and world.objects[held].kind == task.object and lit
    there = Counter(
        thing.place
        for thing in world.objects.values()
        if thing.kind == task.object
        and thing.place is not None
        and world.receptacles[thing.place].kind == task.target
        and (task.kind not in tools or task.kind in thing.treatments)
    )
    return max(there.values(), default=0) >= (2 if task.kind == "place_two" else 1)
