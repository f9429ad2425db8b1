"""A reward function for the examples: is the last number of the response the answer?"""  # noqa: INP001

from __future__ import annotations

import re


def last_number(prompt: object, response: str, *, answer: int, **fields: object) -> dict[str, float]:
    """1 for the right number, 0 for another one or none.

    Called with the prompt (text, or the list of chat messages), the response, and every field of the dataset row
    by name. A bare number may be returned as well; the keys beside `reward` are recorded with the sample.
    """
    del prompt, fields
    numbers = re.findall(r"-?\d+", response)
    right = bool(numbers) and numbers[-1] == str(answer)
    return {"reward": float(right), "gave_number": float(bool(numbers))}


def brevity(prompt: object, response: str, **fields: object) -> float:
    """1 for an empty response, less for each word: a reward that any model can learn in a few steps."""
    del prompt, fields
    return 1.0 / (1 + len(response.split()))
