"""Sums of reasoning-gym's `chain_sum` in whole words: what the demo's kind of model says to them before it is trained.

    State the final answer to the following arithmetic problem: 4 - 1 + 7 - 9 =
    - 1 3 + 7 10 - 9 1 <answer> 1 </answer>        worked out: each operator and number, and the sum so far
    <answer> 1 </answer>                           answered at once

The demonstrations are right either way, and most of them are answered at once, which the model can only guess. That
working a sum out is worth its words is what the reward teaches.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import random
    from collections.abc import Mapping

introduction = "State the final answer to the following arithmetic problem:"
operators = ("+", "-")
opening, closing = "<answer>", "</answer>"
largest_digit = 9
fewest_terms, most_terms = 4, 6
largest_sum = largest_digit * most_terms
highest_level = most_terms - 2
"""Of reasoning-gym's curriculum, whose level 0 is two numbers."""


@dataclass(frozen=True, slots=True)
class Sum:
    """Numbers from 0 to 9, each with the operator before it; that of the first is `+` and not said."""

    operators: tuple[str, ...]
    numbers: tuple[int, ...]

    @property
    def question(self) -> str:
        """As reasoning-gym asks it."""
        first, *others = zip(self.operators, self.numbers, strict=True)
        said = " ".join(f"{operator} {number}" for operator, number in others)
        return f"{introduction} {first[1]} {said} ="

    @property
    def totals(self) -> list[int]:
        """The sum after each number."""
        signed = zip(self.operators, self.numbers, strict=True)
        return list(accumulate(number if operator == "+" else -number for operator, number in signed))

    def answer(self, *, worked_out: bool) -> str:
        """A right answer."""
        steps = zip(self.operators[1:], self.numbers[1:], self.totals[1:], strict=True)
        working = [f"{operator} {number} {total}" for operator, number, total in steps if worked_out]
        return " ".join([*working, opening, str(self.totals[-1]), closing])


def drawn(rng: random.Random) -> Sum:
    """Any sum of as many numbers as the example asks for."""
    num_terms = rng.randint(fewest_terms, most_terms)
    return Sum(
        ("+", *rng.choices(operators, k=num_terms - 1)),
        tuple(rng.randint(0, largest_digit) for _ in range(num_terms)),
    )


def are_asked(parameters: Mapping[str, Any]) -> bool:
    """Whether these parameters of the environment `reasoning_gym` ask for sums that the model has the words for."""
    level = parameters.get("level")
    levels = level if isinstance(level, list) else [level]
    configuration = parameters.get("configuration")
    return (
        (parameters.get("dataset"), parameters.get("answer_tag")) == ("chain_sum", "answer")
        and isinstance(configuration, dict)
        and configuration.get("max_digits") == 1
        and "max_terms" not in configuration
        and all(isinstance(each, int) and 0 <= each <= highest_level for each in levels)
    )
