"""What a line of text asks for. The text is a model's: it is matched against fixed forms and never run."""

from __future__ import annotations

import re
from dataclasses import dataclass

_longest_line = 120
"""Characters; every command that does something is far shorter."""

_name = r"([a-z]+ [0-9]{1,4})"
_forms = {
    "go": re.compile(rf"go to {_name}"),
    "open": re.compile(rf"open {_name}"),
    "close": re.compile(rf"close {_name}"),
    "take": re.compile(rf"take {_name} from {_name}"),
    "put": re.compile(rf"put {_name} (?:in/on|in|on) {_name}"),
    "clean": re.compile(rf"clean {_name} with {_name}"),
    "heat": re.compile(rf"heat {_name} with {_name}"),
    "cool": re.compile(rf"cool {_name} with {_name}"),
    "use": re.compile(rf"use {_name}"),
    "examine": re.compile(rf"examine {_name}"),
    "inventory": re.compile("inventory"),
    "look": re.compile("look"),
}


@dataclass(frozen=True, slots=True)
class Command:
    """A verb, and the names that go with it in the order of the text, such as `apple 1`."""

    verb: str
    names: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """The line that asks for it."""
        joint = {"take": " from ", "put": " in/on ", "clean": " with ", "heat": " with ", "cool": " with "}
        verb = "go to" if self.verb == "go" else self.verb
        return f"{verb} {joint.get(self.verb, ' ').join(self.names)}".strip()


def command_of(text: str) -> Command | None:
    """The command in the first line of a text, in capitals or not; None where it has none of the forms."""
    line = text.strip().partition("\n")[0]
    if len(line) > _longest_line or not line.isascii():
        return None
    words = " ".join(line.lower().split())
    for verb, form in _forms.items():
        if (match := form.fullmatch(words)) is not None:
            return Command(verb, match.groups())
    return None
