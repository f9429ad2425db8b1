r"""`math`: whether an answer equals the right one, by math-verify.

Which part of the response is the answer is decided here, not by math-verify, which makes a set of `\boxed{7} \boxed{8}`
and nothing of `\$12`. It gets one formula, never more than `_most_characters` long. Its own time-outs are signals,
which only a main thread may have, so they are off: a call that does not end is ended with its process, by the pool.
"""

from __future__ import annotations

import logging
import re
from itertools import accumulate
from math import log10
from typing import TYPE_CHECKING, Any

from producers.rewards.library.extraction import last_box, marked_answer, right_answers, text_behind
from rollog.kernel.errors import DataError

if TYPE_CHECKING:
    from producers.rewards.functions import RewardFunction
    from rollog.settings.named_rewards import MathReward

_most_characters = 2_000
_most_depth = 50
_most_exponent = 10**6

_number = r"[-+]?(?:\d[\d,]*)?\.?\d+(?:[eE][-+]?\d+)?(?:\s*/\s*\d+)?\s*(?:\\?%)?"
_formula = re.compile(
    rf"\$\$(.+?)\$\$|\\\[(.+?)\\\]|\\\((.+?)\\\)|\$([^$]+)\$|({_number})", re.DOTALL | re.ASCII
)
_inline = re.compile(r"\$\$(.+?)\$\$|\\\((.+?)\\\)|\\\[(.+?)\\\]|\$([^$]+)\$", re.DOTALL)
_command_of_text = re.compile(r"\\(?:text|textbf|textit|mathrm|mathbf|operatorname|mbox)\s*\{([^{}]*)\}")
_word = re.compile(r"[^\W\d_]{3,}(?:[\s-]+[^\W\d_]+)*")
_choice = re.compile(r"\(?([A-Za-z])[).]?")
_exponent = re.compile(r"(\d)\s*[eE]\s*([-+]?\d+)(?![\w.])")
_root = re.compile(r"(?<![\\A-Za-z])sqrt\s*\(([^()]*)\)")
_power = re.compile(r"\^\s*\{?\s*-?\s*(\d+)", re.ASCII)
_tower = re.compile(r"\^\s*\{?\s*-?\s*(\d+)\s*\^\s*\{?\s*(\d+)", re.ASCII)
_factorial = re.compile(r"\d{6,}\s*\)?\s*!|!\s*!\s*!", re.ASCII)
"""Factorials of numbers of six digits and more, and of factorials of factorials."""
_greek = re.compile(r"(?<![\\A-Za-z])(pi|infinity|inf|oo)(?![A-Za-z])")
_names = {"pi": r"\pi ", "infinity": r"\infty ", "inf": r"\infty ", "oo": r"\infty "}
_superscripts = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻", "0123456789-")
_superscript = re.compile("[⁰¹²³⁴⁵⁶⁷⁸⁹⁻]+")
_symbols = str.maketrans(
    {
        "−": "-",
        "–": "-",
        "×": r"\times ",
        "⋅": r"\cdot ",
        "·": r"\cdot ",
        "÷": "/",
        "π": r"\pi ",
        "∞": r"\infty ",
        "≤": r"\le ",
        "≥": r"\ge ",
        "≠": r"\ne ",
        "∪": r"\cup ",
        "∩": r"\cap ",
        "∈": r"\in ",
        "∅": r"\emptyset ",
        "±": r"\pm ",
        "°": r"^\circ ",
        "½": r"\frac{1}{2}",
        "¼": r"\frac{1}{4}",
        "¾": r"\frac{3}{4}",
        "€": "",
        "£": "",
        "¥": "",
        "\u00a0": " ",
    }
)


def math_reward(options: MathReward) -> RewardFunction:
    """The reward function. Raises DataError when math-verify is not installed."""
    try:
        import math_verify  # noqa: F401, PLC0415 - an extra; imported before the first call is timed
    except ImportError as error:
        raise DataError("the reward 'math' needs math-verify; install rollog[rewards]") from error
    # It warns that its time-outs are off.
    logging.getLogger("math_verify").setLevel(logging.ERROR)

    def mathematics(prompt: object, response: str, /, **fields: Any) -> dict[str, float]:
        del prompt
        rights = right_answers(fields, options.field)
        text = text_behind(response, options.after)
        answer = None if text is None else answer_in(text, options.where)
        if answer is None:
            return {"reward": 0.0, "answered": 0.0}
        right = any(is_equal(_right_text(each), answer, decimals=options.decimals) for each in rights)
        return {"reward": float(right), "answered": 1.0}

    return mathematics


def answer_in(text: str, where: str) -> str | None:
    """The answer of a response as `where` says it stands there, None without one."""
    if where == "boxed":
        return last_box(text)
    marked = marked_answer(text)
    if marked is not None or where == "marked":
        return marked
    found = list(_formula.finditer(text[-_most_characters:].replace(r"\$", "")))
    return next(filter(None, found[-1].groups())) if found else None


def is_equal(right: str, answer: str, *, decimals: int = 6) -> bool:
    """Whether the answer equals the right one: as text, or else as mathematics."""
    right, answer = right[:_most_characters], answer[:_most_characters]
    texts = [_plain(right), _plain(answer)]
    if texts[0] == texts[1] != "":
        return True
    if _word.fullmatch(texts[0]):
        # As mathematics a word is the product of its letters, and `blue` equals `lube`.
        return texts[0].casefold() == texts[1].casefold()
    return _is_equal_mathematics(latex_of(right), latex_of(answer), decimals)


def latex_of(answer: str) -> str:
    """The answer as one LaTeX formula, in the forms that math-verify reads."""
    text = answer.replace(r"\$", "").strip().strip("*").strip()
    inline = [next(filter(None, found.groups())) for found in _inline.finditer(text)]
    text = ", ".join(inline) if inline else text
    text = text.replace("$", "").rstrip(". ").translate(_symbols)
    text = _superscript.sub(lambda found: f"^{{{found[0].translate(_superscripts)}}}", text)
    text = text.replace("**", "^").replace("√(", "sqrt(").replace("√", r"\sqrt ")
    text = _root.sub(r"\\sqrt{\1}", text)
    text = _exponent.sub(r"\1 \\times 10^{\2}", text)
    return _greek.sub(lambda found: _names[found[1]], text)


def _is_equal_mathematics(right: str, answer: str, decimals: int) -> bool:
    from math_verify import LatexExtractionConfig, parse, verify  # noqa: PLC0415 - an extra

    if _is_out_of_bounds(right) or _is_out_of_bounds(answer):
        return False
    # Only LaTeX: math-verify reads plain expressions with a parser that evaluates Python.
    read = [
        parse(f"${text}$", [LatexExtractionConfig()], fallback_mode="no_fallback", parsing_timeout=None)
        for text in (right, answer)
    ]
    if not all(read):
        return False
    return bool(verify(read[0], read[1], float_rounding=decimals, timeout_seconds=None))


def _is_out_of_bounds(latex: str) -> bool:
    """Whether it is plain without computing that this has no end: such an answer is wrong at once.

    What is not as plain ends at the time-out, which costs a process and fails the sample.
    """
    powers = (int(found[1]) for found in _power.finditer(latex))
    towers = (int(found[2]) * log10(int(found[1]) or 1) for found in _tower.finditer(latex))
    return (
        any(exponent > _most_exponent for exponent in powers)
        or any(digits > log10(_most_exponent) for digits in towers)
        or _factorial.search(latex) is not None
        or _depth(latex) > _most_depth
    )


def _depth(latex: str) -> int:
    steps = ((character in "({[") - (character in ")}]") for character in latex)
    return max(accumulate(steps), default=0)


def _plain(text: str) -> str:
    """The answer without what only sets it: dollars, text commands, white space, a full stop, a choice's brackets."""
    text = _command_of_text.sub(r"\1", text.replace("$", "").replace("\\$", "")).strip().strip("*")
    text = " ".join(text.rstrip(".").split())
    choice = _choice.fullmatch(text)
    return choice[1] if choice else text


def _right_text(right: object) -> str:
    """The right answer of a row as text: its marked part, where it is a whole solution."""
    text = str(right)
    marked = marked_answer(text) if isinstance(right, str) else None
    return text if marked is None else marked
