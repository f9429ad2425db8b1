"""Reward functions for whole runs of a model that knows nothing: what counts is that they vary."""

from __future__ import annotations


def even_words(prompt: str, response: str, **_fields: object) -> float:
    """1 for a response with an even number of words."""
    del prompt
    return float(len(response.split()) % 2 == 0)
