"""Lines that a reward process writes, read with distrust: what the user's function does there may write, too."""

from __future__ import annotations

import json
import math
from typing import Any

from producers.rewards.functions import RewardResult
from rollog.kernel.errors import RewardError

_most_answer_bytes = 1 << 20
"""An answer is a few numbers; what is longer is none."""


def check_length(rest: bytes) -> None:
    """Raises RewardError when the part of an answer that is there is too long already."""
    if len(rest) > _most_answer_bytes:
        raise RewardError(f"an answer of more than {_most_answer_bytes} bytes")


def parsed_answer(line: bytes) -> dict[str, Any]:
    """One line as JSON object. Raises RewardError."""
    try:
        answer = json.loads(line)
    except ValueError as error:
        raise RewardError(f"a line that is no JSON: {line[:80]!r}") from error
    if not isinstance(answer, dict):
        raise RewardError(f"a line that is no answer: {line[:80]!r}")
    return answer


def result_in(answer: dict[str, Any]) -> RewardResult:
    """The result in an answer. Raises RewardError when a part is missing, or is no finite number."""
    try:
        result = RewardResult(
            reward=float(answer["reward"]),
            components={str(name): float(value) for name, value in answer["components"].items()},
            turn_rewards=tuple(float(value) for value in answer["turn_rewards"]),
        )
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise RewardError(f"an answer without its parts: {type(error).__name__}: {error}") from error
    if not all(map(math.isfinite, (result.reward, *result.components.values(), *result.turn_rewards))):
        raise RewardError("an answer with a number that is not finite")
    return result
