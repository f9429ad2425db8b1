"""Fenced blocks in a response: the code that it gives is its last one."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_fence = re.compile(r" {0,3}(`{3,})([^`]*)")
_tags = frozenset({"", "py", "python", "python3"})


@dataclass(frozen=True, slots=True)
class Block:
    """What stands between two fences: `tag` on the first one, then lines."""

    tag: str
    text: str
    """Each line ends with a line break."""


def fenced_blocks(response: str) -> Iterator[Block]:
    """The blocks between fences of three or more backquotes.

    A block that is not closed, as in a response that was cut, is none.
    """
    fence, tag, lines = "", "", list[str]()
    for line in response.splitlines():
        match = _fence.fullmatch(line.rstrip())
        if not fence:
            if match is not None:
                fence, tag, lines = match[1], match[2].strip(), []
        elif match is not None and len(match[1]) >= len(fence) and not match[2].strip():
            yield Block(tag, "".join(f"{line}\n" for line in lines))
            fence = ""
        else:
            lines.append(line)


def last_code_block(response: str) -> str | None:
    """The last block that bears no language, or Python's; None when there is none."""
    blocks = [block.text or "\n" for block in fenced_blocks(response) if block.tag.lower() in _tags]
    return blocks[-1] if blocks else None
