"""What is where in a house, and what commands do to it.

| command                        | needs                                           | does                              |
| ---                            | ---                                             | ---                               |
| go to R                        | standing elsewhere                              | stands there                      |
| open R, close R                | standing there; a door that is closed, or open  | opens, closes                     |
| take O from R                  | standing there; O in it, seen; the hand empty   | O is in the hand                  |
| put O in/on R                  | standing there; O in the hand; R not closed     | O is there                        |
| clean, heat, cool O with R     | standing there; O in the hand; both of the kind | O is clean, hot or cold           |
| use L                          | standing where the lamp is                      | it is lit, and stays so           |
| examine X                      | X is here, seen, or in the hand                 | nothing; tells                    |
| inventory, look                |                                                 | nothing; tells                    |

Everything else is answered `Nothing happens.` and does nothing. What is hot is no longer cold, and the reverse.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from producers.environments.household.commands import Command
from producers.environments.household.things import can_close, preposition, tools, treatable, with_article

nothing_happens = "Nothing happens."
_opposite = {"heat": "cool", "cool": "heat"}
_state_words = {"clean": "clean", "heat": "hot", "cool": "cold"}


@dataclass(slots=True)
class Receptacle:
    """One of a kind in a room. One without a door is always open."""

    kind: str
    room: str
    is_open: bool


@dataclass(slots=True)
class Thing:
    """An object, in the receptacle `place`, or in the hand where that is None; and what was done to it."""

    kind: str
    place: str | None
    treatments: frozenset[str] = frozenset()


@dataclass(slots=True)
class Lamp:
    """A lamp, which stays where it is."""

    kind: str
    place: str
    is_lit: bool = False


@dataclass(slots=True)
class World:
    """A house by the names of what is in it, such as `apple 1`, and the receptacle at which the agent stands."""

    receptacles: dict[str, Receptacle]
    objects: dict[str, Thing]
    lamps: dict[str, Lamp]
    here: str | None = field(default=None)

    @property
    def held(self) -> str | None:
        """The object in the hand."""
        return next((name for name, thing in self.objects.items() if thing.place is None), None)

    @property
    def seen(self) -> list[str]:
        """The objects of the receptacle at which the agent stands, none where it is closed."""
        if self.here is None or not self.receptacles[self.here].is_open:
            return []
        return sorted(name for name, thing in self.objects.items() if thing.place == self.here)

    @property
    def lamps_here(self) -> list[str]:
        """The lamps at which the agent stands."""
        return sorted(name for name, lamp in self.lamps.items() if lamp.place == self.here)

    def admissible(self) -> list[Command]:
        """All commands that do or tell something."""
        commands = [Command("go", (name,)) for name in self.receptacles if name != self.here]
        commands += [Command("examine", (name,)) for name in self._examinable()]
        commands += [Command("use", (name,)) for name in self.lamps_here]
        commands += [Command("inventory"), Command("look")]
        if self.here is not None:
            commands += self._admissible_at(self.here, self.receptacles[self.here])
        return commands

    def _admissible_at(self, here: str, receptacle: Receptacle) -> list[Command]:
        commands = []
        if receptacle.kind in can_close:
            commands.append(Command("close" if receptacle.is_open else "open", (here,)))
        if self.held is None:
            return commands + [Command("take", (name, here)) for name in self.seen]
        if receptacle.is_open:
            commands.append(Command("put", (self.held, here)))
        kind = self.objects[self.held].kind
        return commands + [
            Command(treatment, (self.held, here))
            for treatment, tool in tools.items()
            if receptacle.kind == tool and kind in treatable[treatment]
        ]

    def _examinable(self) -> list[str]:
        here = [] if self.here is None else [self.here]
        held = [] if self.held is None else [self.held]
        return [*here, *self.seen, *self.lamps_here, *held]

    def do(self, command: Command | None) -> str:
        """Do what is asked for, and say what came of it."""
        if command is None or command not in self.admissible():
            return nothing_happens
        match command:
            case Command("go", (place,)):
                self.here = place
                said = f"You stand at {place}. {self._contents()}"
            case Command("open" | "close" as verb, (place,)):
                said = self._turn_door(place, is_open=verb == "open")
            case Command("take", (name, place)):
                self.objects[name].place = None
                said = f"You have {name} from {place} in your hand."
            case Command("put", (name, place)):
                self.objects[name].place = place
                said = f"{name} is now {preposition(self.receptacles[place].kind)} {place}."
            case Command("use", (name,)):
                self.lamps[name].is_lit = True
                said = f"{name} gives light."
            case Command("clean" | "heat" | "cool" as treatment, (name, place)):
                said = self._treat(treatment, name, place)
            case _:
                said = self._told(command)
        return said

    def _turn_door(self, place: str, *, is_open: bool) -> str:
        self.receptacles[place].is_open = is_open
        return f"{place} is now open. {self._contents()}" if is_open else f"{place} is now closed."

    def _treat(self, treatment: str, name: str, place: str) -> str:
        thing = self.objects[name]
        thing.treatments = (thing.treatments - {_opposite.get(treatment)}) | {treatment}
        return f"With {place} you make {name} {_state_words[treatment]}."

    def _told(self, command: Command) -> str:
        """The answer to a command that only asks."""
        if command.verb == "inventory":
            return f"In your hand: {self.held or 'nothing'}."
        if command.verb == "look":
            return (
                "You stand in the middle."
                if self.here is None
                else f"You stand at {self.here}. {self._contents()}"
            )
        (name,) = command.names
        if name == self.here:
            return self._contents()
        if name in self.lamps:
            return f"{name} is {'lit' if self.lamps[name].is_lit else 'dark'}."
        states = sorted(_state_words[treatment] for treatment in self.objects[name].treatments)
        return (
            f"{name} is {with_article(self.objects[name].kind)}{''.join(f', {state}' for state in states)}."
        )

    def _contents(self) -> str:
        """What is seen where the agent stands."""
        assert self.here is not None
        receptacle = self.receptacles[self.here]
        lamps = f" Beside it stands {', '.join(self.lamps_here)}." if self.lamps_here else ""
        if not receptacle.is_open:
            return f"It is closed.{lamps}"
        there = "In it" if preposition(receptacle.kind) == "in" else "On it"
        return f"{there} you see: {', '.join(self.seen) or 'nothing'}.{lamps}"
