"""Reward functions that do what users' functions do, good and bad."""

from __future__ import annotations

import os
import time
from typing import Any

values = {
    "mapping": {"reward": True, "format": 0.5, "prompt_length": 2},
    "turns": {"reward": 1.5, "turn_rewards": [1, 0.5]},
    "no turns": {"reward": 1.5, "turn_rewards": 0.5},
    "endless turn": {"reward": 1.5, "turn_rewards": [0.5, float("inf")]},
    "nan": float("nan"),
    "inf": float("inf"),
    "text": "1.0",
    "nothing": None,
    "no key": {"score": 1.0},
}


def reward(prompt: Any, response: str, *, behaviour: str = "length") -> Any:
    """Does what the field `behaviour` of the dataset row says."""
    if behaviour == "raise":
        raise KeyError(prompt)
    if behaviour == "exit":
        os._exit(3)
    while behaviour == "hang":
        time.sleep(1)
    if behaviour == "prompt length":
        return len(prompt)
    return values.get(behaviour, len(response))


not_callable = 3
