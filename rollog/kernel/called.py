"""How this program was called, for messages that name its other commands."""

from __future__ import annotations

import os
import shlex
import shutil
from pathlib import Path

_program = "rollog"


def called_as(word: str, here: Path) -> str:
    """The word for a shell in directory `here`, given the word by which the program was called (`sys.argv[0]`).

    `rollog` where the shell finds that very program, or where it was called in another way, as a module say; else its
    place, relative inside `here`.
    """
    return word_for(here / word, here) if Path(word).name == _program else _program


def word_for(program: Path, here: Path) -> str:
    """What a shell in directory `here` starts `program` by: its name where the shell finds it, else a path."""
    # Links are kept: a virtual environment may be one.
    place = Path(os.path.abspath(program))  # noqa: PTH100 - resolve() follows links
    found = shutil.which(place.name)
    if found is not None and os.path.abspath(found) == str(place):  # noqa: PTH100 - as above
        return place.name
    if not place.is_relative_to(here):
        return shlex.quote(str(place))
    inside = str(place.relative_to(here))
    return shlex.quote(inside if os.sep in inside else f".{os.sep}{inside}")
