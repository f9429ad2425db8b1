"""Reward functions that do what users' functions do, good and bad."""

from __future__ import annotations

import os
import time
from typing import Any


def reward(prompt: Any, response: str, **fields: Any) -> Any:
    """Does what the field `behaviour` says."""
    behaviour = fields.get("behaviour", "length")
    match behaviour:
        case "length":
            return len(response)
        case "mapping":
            return {"reward": True, "format": 0.5, "prompt_length": len(prompt)}
        case "nan":
            return float("nan")
        case "text":
            return "1.0"
        case "nothing":
            return None
        case "no key":
            return {"score": 1.0}
        case "raise":
            raise KeyError("answer")
        case "hang":
            while True:
                time.sleep(1)
        case "exit":
            os._exit(3)
        case _:
            return float(behaviour)


not_callable = 3
