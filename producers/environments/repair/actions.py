r"""What an agent does in a turn: one fenced block, whose tag says what it is.

```sh                        ```write notes/plan.txt        ```replace toolbox/days.py        ```submit
python3 -m unittest          all that the file holds        old lines                         ```
```                          ```                            =====
                                                            new lines
                                                            ```
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from producers.environments.repair.files import ActionRefused
from producers.rewards.code_blocks import fenced_blocks

if TYPE_CHECKING:
    from producers.rewards.code_blocks import Block

_kinds = ("sh", "write", "replace", "submit")
_most_command_characters = 16_000
_divider = "=====\n"


@dataclass(frozen=True, slots=True)
class RunCommand:
    """Give the text to a shell."""

    command: str


@dataclass(frozen=True, slots=True)
class WriteFile:
    """Make a file of the text."""

    path: str
    content: str


@dataclass(frozen=True, slots=True)
class ReplaceText:
    """Put `new` in the one place of `old`."""

    path: str
    old: str
    new: str


@dataclass(frozen=True, slots=True)
class Submit:
    """Have the work judged."""


Action = RunCommand | WriteFile | ReplaceText | Submit


def action_of(said: str) -> Action:
    """The one action of a turn. Raises ActionRefused, with what to say instead."""
    if said.strip() == "submit":
        return Submit()
    if not _is_text(said):
        raise ActionRefused("the turn holds what is no text")
    blocks = [block for block in fenced_blocks(said) if block.tag.split(" ")[0] in _kinds]
    if len(blocks) != 1:
        raise ActionRefused(
            f"{len(blocks)} actions were given; give one, as a closed block that begins with ```sh, ```write PATH, "
            "```replace PATH or ```submit"
        )
    return _action(blocks[0])


def _action(block: Block) -> Action:
    kind, _, path = block.tag.partition(" ")
    match kind:
        case "sh":
            if len(block.text) > _most_command_characters:
                raise ActionRefused(f"a command takes {_most_command_characters} characters at most")
            return RunCommand(block.text)
        case "write":
            return WriteFile(path.strip(), block.text)
        case "replace":
            old, divider, new = block.text.partition(f"\n{_divider}")
            if not divider:
                raise ActionRefused("a replacement is the old lines, a line =====, the new lines")
            return ReplaceText(path.strip(), f"{old}\n", new)
    return Submit()


def _is_text(said: str) -> bool:
    """Whether UTF-8 and the words of a command can hold it."""
    try:
        said.encode()
    except UnicodeEncodeError:
        return False
    return "\0" not in said
