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
