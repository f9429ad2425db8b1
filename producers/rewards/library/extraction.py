r"""The answer in a response, and the right one in a row of the dataset.

The last box or mark counts, whatever stands before it: a response that boxes every possible answer has given the last.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from rollog.kernel.errors import RewardError

if TYPE_CHECKING:
    from collections.abc import Mapping

_box = re.compile(r"\\(?:boxed|fbox)\s*(?=\{)|\\boxed\s*([0-9A-Za-z])")
_brace = re.compile(r"\\.|[{}]", re.DOTALL)
_tag = "</answer>"
_mark = re.compile(r"####|\banswer[ \t*]*(?:is|:|=)[ \t*]*:?", re.IGNORECASE)
_display = re.compile(r"\$\$(.+?)\$\$|\\\[(.+?)\\\]", re.DOTALL)
_end_of_answer = re.compile(r"\n|\.\s|\.$")
_most_characters = 20_000
"""A mark is looked for in so much of the response's end."""
_most_boxes = 16
"""Boxes that are tried from the end on until one has braces that close: a bound for a response full of open ones."""


def right_answers(fields: Mapping[str, Any], name: str) -> list[Any]:
    """The right answers of a row: the field `name`, or each entry of it where it is a list. Raises RewardError."""
    if name not in fields:
        present = ", ".join(sorted(fields)) or "none"
        raise RewardError(
            f"the row has no field {name!r} with the right answer (its fields: {present}); name it by field"
        )
    value = fields[name]
    answers = value if isinstance(value, list) else [value]
    if not answers or not all(isinstance(answer, (str, int, float)) for answer in answers):
        raise RewardError(
            f"the row's field {name!r} = {str(value)[:80]!r} holds no answer; give a text, a number or a list of these"
        )
    return answers


def text_behind(response: str, mark: str | None) -> str | None:
    """What stands behind the last `mark`, all where it is None, None where the mark is missing."""
    if mark is None:
        return response
    _, found, behind = response.rpartition(mark)
    return behind if found else None


def last_box(text: str) -> str | None:
    r"""What stands in the last \boxed{} whose braces close."""
    text = text[-_most_characters:]
    for found in reversed(list(_box.finditer(text))[-_most_boxes:]):
        content = found[1] or _braced(text, found.end())
        if content is not None:
            return content
    return None


def marked_answer(text: str) -> str | None:
    """What the response marks as its answer: the last box, else the last `<answer>`, else what follows a mark."""
    box = last_box(text)
    if box is not None:
        return box
    before, closed, _ = text.rpartition(_tag)
    _, opened, inside = before.rpartition("<answer>")
    if closed and opened:
        return inside
    text = text[-_most_characters:]
    marks = list(_mark.finditer(text))
    if not marks:
        return None
    rest = text[marks[-1].end() :].lstrip(" \t\n*")
    display = _display.match(rest)
    return (display[1] or display[2]) if display else _end_of_answer.split(rest, maxsplit=1)[0]


def _braced(text: str, begin: int) -> str | None:
    """What stands between the brace at `begin` and its partner; None where it has none."""
    depth = 0
    for found in _brace.finditer(text, begin):
        depth += {"{": 1, "}": -1}.get(found[0], 0)
        if depth == 0 and found[0] == "}":
            return text[begin + 1 : found.start()]
    return None
