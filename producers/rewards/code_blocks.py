"""The code in a response: its last fenced block."""

from __future__ import annotations

import re

_fence = re.compile(r" {0,3}(`{3,})([^`]*)")
_tags = frozenset({"", "py", "python", "python3"})


def last_code_block(response: str) -> str | None:
    """The last block between fences of three or more backquotes that bears no language, or Python's.

    None when there is none; a block that is not closed, as in a response that was cut, is none.
    """
    found: str | None = None
    fence, tag, lines = "", "", list[str]()
    for line in response.splitlines():
        match = _fence.fullmatch(line.rstrip())
        if not fence:
            if match is not None:
                fence, tag, lines = match[1], match[2].strip().lower(), []
        elif match is not None and len(match[1]) >= len(fence) and not match[2].strip():
            if tag in _tags:
                found = "\n".join(lines) + "\n"
            fence = ""
        else:
            lines.append(line)
    return found
