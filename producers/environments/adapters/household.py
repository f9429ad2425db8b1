"""Games of text in a house: find an object, do something with it, bring it somewhere.

In the manner of ALFWorld (Shridhar et al., arXiv 2010.03768): its six kinds of tasks and its commands, over houses and
sentences of our own, without a package. See producers/environments/household.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

from producers.environments.household.commands import command_of
from producers.environments.household.houses import house_of, most_rooms
from producers.environments.household.tasks import Task, is_fulfilled, kinds, tasks
from producers.environments.household.world import World
from producers.environments.ports import Declaration, Observation, StepResult

if TYPE_CHECKING:
    from collections.abc import Sequence

held_out_seeds = 1 << 40
"""Seeds from here on are those of a run's held-out episodes."""

_commands = (
    "Give one command each turn: go to R, open R, close R, take O from R, put O in/on R, clean O with R, "
    "heat O with R, cool O with R, use L, examine X, inventory, look. Names have a number, as in `go to drawer 1`. "
    "You can hold one object."
)


class Household:
    """A house of `num_rooms` rooms (1 to 3), and a task of one of `kinds` (all six, left out). The end is worth 1.

    `held_out` chooses combinations of task, object and target that are held out (true) or of training (false); left
    out, seeds from 2^40 on play those that are held out. With `show_commands` each text ends with all commands that do
    something. 50 turns are enough to search every house and fulfil its task.
    """

    def __init__(
        self,
        *,
        kinds: Sequence[str] = kinds,
        num_rooms: int = 2,
        held_out: bool | None = None,
        show_commands: bool = False,
        max_turns: int = 50,
    ) -> None:
        if isinstance(kinds, str) or not kinds:
            raise ValueError(f"kinds = {kinds!r} has to be a list of one kind of task or more")
        if num_rooms not in range(1, most_rooms + 1):
            raise ValueError(f"num_rooms = {num_rooms} has to be 1 to {most_rooms}")
        if max_turns < 1:
            raise ValueError(f"max_turns = {max_turns} has to be 1 or more")
        self.declaration = Declaration("replay", max_turns=max_turns)
        self._tasks = {side: [tasks(kind, held_out=side) for kind in kinds] for side in (False, True)}
        self._num_rooms = num_rooms
        self._held_out = held_out
        self._show_commands = show_commands
        self._task = self._tasks[False][0][0]
        self._world = World({}, {}, {})

    def reset(self, seed: int) -> Observation:
        """Make the house of the seed, and say what is asked for."""
        draw = random.Random(seed)  # noqa: S311  # a game, no secret
        held_out = seed >= held_out_seeds if self._held_out is None else self._held_out
        self._task = draw.choice(draw.choice(self._tasks[held_out]))
        self._world = house_of(self._task, draw, self._num_rooms)
        text = f"{_described(self._world)}\n{_commands}\nYour task: {self._task.text}"
        return Observation.of(text + self._listed(), **_info(self._task))

    def step(self, action: str) -> StepResult:
        """Do what the first line asks for."""
        said = self._world.do(command_of(action))
        if is_fulfilled(self._task, self._world):
            return StepResult.of(f"{said} The task is done.", reward=1.0, done=True, won=True)
        return StepResult.of(said + self._listed(), won=False)

    def close(self) -> None:
        """Nothing is held."""

    def _listed(self) -> str:
        if not self._show_commands:
            return ""
        return f"\nYou can: {', '.join(command.text for command in self._world.admissible())}."


def _described(world: World) -> str:
    """The rooms with their receptacles."""
    by_room: dict[str, list[str]] = {}
    for name, receptacle in world.receptacles.items():
        by_room.setdefault(receptacle.room, []).append(name)
    lines = [f"The {room} has {', '.join(names)}." for room, names in by_room.items()]
    return "\n".join(["You are in a house.", *lines])


def _info(task: Task) -> dict[str, Any]:
    return {"kind": task.kind, "object": task.object, "target": task.target, "held_out": task.is_held_out}
