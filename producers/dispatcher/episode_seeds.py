"""The prompts of a run with an environment: one for each seed of an episode. The environment gives the text."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from schemas import Prompt

if TYPE_CHECKING:
    from rollog.settings.environment import EnvironmentConfig

held_out_seeds = 1 << 40
"""Seeds from here on are held out."""


def episode_prompts(environment: EnvironmentConfig) -> tuple[list[Prompt], list[Prompt]]:
    """Training and held-out episodes."""
    held_out = range(held_out_seeds, held_out_seeds + environment.num_held_out)
    return [_prompt(seed) for seed in range(environment.num_train)], [_prompt(seed) for seed in held_out]


def _prompt(seed: int) -> Prompt:
    return Prompt(prompt_id=f"seed-{seed}", text="", reward_inputs_json=json.dumps({"seed": seed}))
