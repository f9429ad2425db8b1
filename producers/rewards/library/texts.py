"""`exact`, `numeric` and `format`: what can be said of a response without understanding it."""

from __future__ import annotations

import re
import unicodedata
from math import isclose, isfinite
from typing import TYPE_CHECKING, Any

from producers.rewards.library.extraction import right_answers, text_behind
from rollog.kernel.errors import RewardError

if TYPE_CHECKING:
    from producers.rewards.functions import RewardFunction
    from rollog.settings.named_rewards import ExactReward, FormatReward, NumericReward

_number = re.compile(
    r"(?<![\w.])[-+]?(?:\d{1,3}(?:,\d{3})+(?!\d)(?:\.\d+)?|\d+(?:\.\d+)?|\.\d+)(?:[eE][-+]?\d{1,4})?",
    re.ASCII,
)

_most_characters = 20_000
"""A number is looked for in so much of the response's end."""


def exact_reward(options: ExactReward) -> RewardFunction:
    """1 where the response is one of the right answers, normalised as the options say."""

    def exact(prompt: object, response: str, /, **fields: Any) -> float:
        del prompt
        rights = {normalised(str(each), options) for each in right_answers(fields, options.field)}
        text = text_behind(response, options.after)
        return float(text is not None and normalised(text, options) in rights)

    return exact


def normalised(text: str, options: ExactReward) -> str:
    """The text in Unicode's composed form, without white space at its ends, and as the options say."""
    text = unicodedata.normalize("NFC", text)
    if options.ignore_case:
        text = text.casefold()
    if options.ignore_punctuation:
        text = "".join(each for each in text if not unicodedata.category(each).startswith("P"))
    return " ".join(text.split()) if options.ignore_space else text.strip()


def numeric_reward(options: NumericReward) -> RewardFunction:
    """1 where the last number of the response is, within the tolerance, one of the right ones."""

    def numeric(prompt: object, response: str, /, **fields: Any) -> dict[str, float]:
        del prompt
        rights = [_right_number(each, options.field) for each in right_answers(fields, options.field)]
        text = text_behind(response, options.after)
        number = None if text is None else last_number(text)
        if number is None:
            return {"reward": 0.0, "answered": 0.0}
        right = any(isclose(number, each, rel_tol=0.0, abs_tol=_distance(each, options)) for each in rights)
        return {"reward": float(right), "answered": 1.0}

    return numeric


def last_number(text: str) -> float | None:
    """The last number that is written in the text: `-1,234.5`, `.5`, `3e8`; None without one that is finite."""
    end = text[-_most_characters:].replace("−", "-")
    numbers = (float(found.replace(",", "")) for found in _number.findall(end))
    return next((number for number in reversed(list(numbers)) if isfinite(number)), None)


def format_reward(options: FormatReward) -> RewardFunction:
    """1 where the pattern is found, or all tags are there. A pattern that never ends is ended by the time-out."""
    pattern = None if options.pattern is None else re.compile(options.pattern, re.DOTALL)

    def form(prompt: object, response: str, /, **fields: Any) -> float:
        del prompt, fields
        if pattern is None:
            return float(has_tags(response, options.tags))
        return float(pattern.search(response) is not None)

    return form


def has_tags(text: str, tags: tuple[str, ...]) -> bool:
    """Whether each tag is opened once and then closed once, and the next begins behind it."""
    place = 0
    for tag in tags:
        opening, closing = f"<{tag}>", f"</{tag}>"
        if text.count(opening) != 1 or text.count(closing) != 1:
            return False
        opened, closed = text.index(opening), text.index(closing)
        if not place <= opened < closed:
            return False
        place = closed + len(closing)
    return True


def _distance(right: float, options: NumericReward) -> float:
    return max(options.tolerance, options.relative_tolerance * abs(right))


def _right_number(right: object, field: str) -> float:
    number = last_number(right) if isinstance(right, str) else float(str(right))
    if number is None or not isfinite(number):
        raise RewardError(
            f"the row's field {field!r} = {str(right)[:80]!r} holds no number; name another by field"
        )
    return number
