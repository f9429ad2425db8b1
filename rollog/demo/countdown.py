"""Mini countdown, the demo's verifiable task: hit a number by adding and subtracting, and know when to stop.

A prompt `7 3 8 : 12 =` gives three numbers in fixed order and a target. A response is a list of attempts
`+ 10 + 18 n ; - 4 + 12 y`: each attempt writes an operator and the value so far, twice, and then a mark,
`y` if its value is the target and `n` if it is not; `;` opens another attempt and the end of the response
stops. Values stay within 0..27 and every target can be reached.

The demonstrations contain right arithmetic and true marks, but they stop after a random attempt, with little regard
to its mark. Supervised training on them teaches format, arithmetic and the check; only the reward teaches to
act on the check: go on until `y`, then stop.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import random
    from collections.abc import Sequence

operators = ("+", "-")
marks = ("y", "n")
again = ";"
digits = range(1, 10)
largest_value = 27
held_out_modulus = 6

_attempt_words = 5
_numbers_per_problem = 3


@dataclass(frozen=True, slots=True)
class Problem:
    """Three numbers in fixed order and a target that can be reached from them."""

    numbers: tuple[int, int, int]
    target: int

    @property
    def prompt(self) -> str:
        """The words the model is given."""
        return f"{' '.join(map(str, self.numbers))} : {self.target} ="

    @property
    def problem_id(self) -> str:
        """Identifies the problem, for example `7-3-8-12`."""
        return "-".join(map(str, (*self.numbers, self.target)))

    @property
    def held_out(self) -> bool:
        """Whether the problem is kept for evaluation; all targets of three numbers fall on the same side."""
        return zlib.crc32(",".join(map(str, self.numbers)).encode()) % held_out_modulus == 0


@dataclass(frozen=True, slots=True)
class Attempt:
    """Two operators and the values after each of them, as written."""

    first_operator: str
    first_value: int
    second_operator: str
    second_value: int

    def words(self, target: int) -> str:
        """The attempt with its true mark."""
        mark = "y" if self.second_value == target else "n"
        return f"{self.first_operator} {self.first_value} {self.second_operator} {self.second_value} {mark}"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a response is worth. A response that is no list of attempts fails on all counts."""

    hit: bool
    """The last attempt writes the target."""
    arithmetic_ok: bool
    """Every written value follows from the numbers and stays within 0..27."""
    marks_ok: bool
    """Every mark says truly whether its attempt writes the target."""
    num_attempts: int
    """Attempts, 0 for a malformed response."""

    @property
    def reward(self) -> float:
        """1 if the last attempt hits and nothing in the response is false, otherwise 0."""
        return float(self.hit and self.arithmetic_ok and self.marks_ok)


def attempts_of(numbers: tuple[int, int, int]) -> tuple[Attempt, ...]:
    """All attempts whose values stay within bounds, in the order of `operators`."""
    made = (_attempt(numbers, first, second) for first, second in product(operators, repeat=2))
    return tuple(a for a in made if _in_bounds(a.first_value) and _in_bounds(a.second_value))


def problems(*, held_out: bool) -> list[Problem]:
    """One side of the split, in a fixed order that is mixed by a checksum, so that any first n are typical."""
    chosen = (p for p in _all_problems() if p.held_out is held_out)
    return sorted(chosen, key=lambda p: (zlib.crc32(p.problem_id.encode()), p.problem_id))


def demonstration(
    problem: Problem, rng: random.Random, *, stop_after_hit: float, stop_after_miss: float
) -> str:
    """A response with right arithmetic and true marks: attempts in random order, none twice.

    It stops after an attempt with the probability given, and after the last possible one for certain.
    """
    remaining = list(attempts_of(problem.numbers))
    rng.shuffle(remaining)
    shown = 1
    while shown < len(remaining):
        hit = remaining[shown - 1].second_value == problem.target
        if rng.random() < (stop_after_hit if hit else stop_after_miss):
            break
        shown += 1
    return f" {again} ".join(attempt.words(problem.target) for attempt in remaining[:shown])


def check(numbers: Sequence[int], target: int, response: str) -> Verdict:
    """Judge any text as a response to a problem."""
    parsed = [_parse_attempt(words) for words in _split_attempts(response)]
    attempts = [found for found in parsed if found is not None]
    if len(attempts) < len(parsed) or len(numbers) != _numbers_per_problem:
        return Verdict(hit=False, arithmetic_ok=False, marks_ok=False, num_attempts=0)
    return Verdict(
        hit=attempts[-1][0].second_value == target,
        arithmetic_ok=all(_right(numbers, attempt) for attempt, _ in attempts),
        marks_ok=all((mark == "y") == (attempt.second_value == target) for attempt, mark in attempts),
        num_attempts=len(attempts),
    )


def reward(
    prompt: str,  # noqa: ARG001  every reward function is given the prompt
    response: str,
    *,
    numbers: Sequence[int],
    target: int,
    **fields: object,  # noqa: ARG001  the row has further fields
) -> dict[str, float]:
    """Score a response; the key `reward` is 1 or 0, the others are its components."""
    verdict = check(numbers, target, response)
    return {
        "reward": verdict.reward,
        "hit": float(verdict.hit),
        "arithmetic_ok": float(verdict.arithmetic_ok),
        "marks_ok": float(verdict.marks_ok),
        "num_attempts": float(verdict.num_attempts),
    }


def row(problem: Problem) -> dict[str, object]:
    """The dataset line of a problem."""
    return {
        "prompt": problem.prompt,
        "numbers": list(problem.numbers),
        "target": problem.target,
        "id": problem.problem_id,
    }


def _all_problems() -> list[Problem]:
    return [
        Problem((a, b, c), target)
        for a, b, c in product(digits, repeat=_numbers_per_problem)
        for target in sorted({attempt.second_value for attempt in attempts_of((a, b, c))})
    ]


def _apply(left: int, operator: str, right: int) -> int:
    return left + right if operator == "+" else left - right


def _attempt(numbers: Sequence[int], first_operator: str, second_operator: str) -> Attempt:
    first_value = _apply(numbers[0], first_operator, numbers[1])
    second_value = _apply(first_value, second_operator, numbers[2])
    return Attempt(first_operator, first_value, second_operator, second_value)


def _in_bounds(value: int) -> bool:
    return 0 <= value <= largest_value


def _right(numbers: Sequence[int], attempt: Attempt) -> bool:
    true = _attempt(numbers, attempt.first_operator, attempt.second_operator)
    return attempt == true and _in_bounds(true.first_value) and _in_bounds(true.second_value)


def _split_attempts(response: str) -> list[list[str]]:
    attempts: list[list[str]] = [[]]
    for word in response.split():
        if word == again:
            attempts.append([])
        else:
            attempts[-1].append(word)
    return attempts


def _parse_attempt(words: Sequence[str]) -> tuple[Attempt, str] | None:
    if len(words) != _attempt_words:
        return None
    first_operator, first_value, second_operator, second_value, mark = words
    first, second = _values.get(first_value), _values.get(second_value)
    if first is None or second is None or mark not in marks:
        return None
    if first_operator not in operators or second_operator not in operators:
        return None
    return Attempt(first_operator, first, second_operator, second), mark


_values = {str(value): value for value in range(largest_value + 1)}
