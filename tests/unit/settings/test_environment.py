"""What an environment in the settings goes with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from pydantic import ValidationError

from rollog.settings.settings import Settings
from rollog.settings.sources import load_settings

if TYPE_CHECKING:
    from pathlib import Path


def settings(**sections: dict[str, Any]) -> Settings:
    return Settings.model_validate({"environment": {"name": "guess_number"}, **sections})


@pytest.mark.parametrize(
    ("sections", "said"),
    [
        ({"data": {"train": "a.jsonl"}}, "data.train = 'a.jsonl' is set, too"),
        ({"data": {"system_prompt": "be brief"}}, "environment.system_prompt"),
        ({"reward": {"function": "mine:score"}}, "reward.function = 'mine:score' is set, too"),
        ({"reward": {"components": [{"name": "math"}]}}, "reward.components = .'math'. is set, too"),
        ({"environment": {"max_turns": 3}}, "environment.max_turns is set and environment.name is not"),
        ({"environment": {"seats": 2}}, "environment.seats is set and environment.name is not"),
    ],
)
def test_what_does_nothing_beside_an_environment_is_refused(sections: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        settings(**sections)


def test_the_budget_of_a_response_is_that_of_all_turns() -> None:
    short = settings(environment={"name": "nim", "max_turns": 4}, sampling={"max_tokens": 64})
    assert short.response_budget == 256
    long = settings(environment={"name": "nim", "max_turns": 100}, sampling={"max_tokens": 64})
    assert long.response_budget == long.model.max_context_tokens == 2048
    assert Settings.model_validate({"sampling": {"max_tokens": 64}}).response_budget == 64


def test_lengths_of_episodes_may_be_beyond_those_of_a_turn() -> None:
    bounds = {"response_tokens_mean_bounds": [100, 900]}
    assert settings(groups=bounds, sampling={"max_tokens": 64}).groups.response_tokens_mean_bounds == (
        100,
        900,
    )


@pytest.mark.parametrize(
    ("groups", "key"),
    [
        ({"group_size": 8, "redundant_replicas": 0}, "groups.group_size = 8"),
        ({"group_size": 9, "redundant_replicas": 2}, "groups.redundant_replicas = 2"),
    ],
)
def test_a_group_is_whole_episodes_of_all_seats(groups: dict[str, int], key: str) -> None:
    game = {"name": "mine:game", "seats": 3}
    with pytest.raises(ValidationError, match=f"{key} is no multiple of environment.seats = 3"):
        settings(environment=game, groups=groups)
    assert settings(environment=game, groups={"group_size": 9, "redundant_replicas": 3})


def test_calls_may_be_drained_beside_an_environment() -> None:
    assert settings(rollout={"reload": "drain"}).rollout.reload == "drain"


def test_parameters_may_be_lists_and_tables_and_are_as_they_were_in_the_manifest(tmp_path: Path) -> None:
    config = tmp_path / "run.toml"
    config.write_text(
        "[environment]\nname = 'reasoning_gym'\n[environment.parameters]\nlevel = [0, 2]\n"
        "configuration = { min_terms = 4, nested = { list = [true, 'x', 1.5] } }\n"
    )
    loaded = load_settings(config, assignments=["environment.parameters.level=[1]"])
    assert loaded.environment.parameters == {
        "level": [1],
        "configuration": {"min_terms": 4, "nested": {"list": [True, "x", 1.5]}},
    }
    again = Settings.from_manifest(loaded.to_manifest())
    assert again.environment == loaded.environment
