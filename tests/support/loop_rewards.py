"""Reward functions for whole runs of a model that knows nothing: what counts is that they vary."""

from __future__ import annotations

import os
import time
from pathlib import Path


def even_words(prompt: str, response: str, **_fields: object) -> float:
    """1 for a response with an even number of words."""
    del prompt
    return float(len(response.split()) % 2 == 0)


def even_words_at_a_pace(prompt: str, response: str, **fields: object) -> float:
    """The same, but slowly while the file that ROLLOG_TEST_PACE names exists, so that a test can act in mid-run."""
    if Path(os.environ["ROLLOG_TEST_PACE"]).exists():
        time.sleep(0.5)
    return even_words(prompt, response, **fields)


def even_words_once_allowed(prompt: str, response: str, **fields: object) -> float:
    """The same, but only once the file that ROLLOG_TEST_PACE names is gone."""
    deadline = time.monotonic() + 300
    while Path(os.environ["ROLLOG_TEST_PACE"]).exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    return even_words(prompt, response, **fields)


poisoned_prompt = "1 1 1 : 0 ="


def fails_on_one_prompt(prompt: str, response: str, **_fields: object) -> float:
    """Raises for one prompt, whatever the response."""
    if prompt == poisoned_prompt:
        raise KeyError("answer")
    return even_words(prompt, response)


def always_right(prompt: str, response: str, **_fields: object) -> float:
    """1, whatever the response."""
    del prompt, response
    return 1.0


def always_raises(prompt: str, response: str, **_fields: object) -> float:
    """A mistake in the user's own code."""
    del response
    known: dict[str, float] = {}
    return known[prompt]
