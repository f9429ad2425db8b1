"""The demo's settings and the example configurations fit the configuration models."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from producers.rewards.functions import load_reward_function
from rollog.settings.settings import check_files
from rollog.settings.sources import demo_settings, load_settings

root = Path(__file__).resolve().parents[3]
examples = sorted((root / "examples").glob("*.toml"))


def test_there_are_examples() -> None:
    named = {"countdown", "huggingface_model", "chat_dataset", "agent", "remote_engine"}
    assert named <= {path.stem for path in examples}


@pytest.mark.parametrize("path", examples, ids=lambda path: path.stem)
def test_an_example_names_only_keys_and_files_that_exist(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(root)
    settings = load_settings(path)
    check_files(settings)
    if settings.environment.name is not None:
        return
    assert settings.reward.function is not None
    assert callable(load_reward_function(settings.reward.function))


@pytest.mark.parametrize("path", examples, ids=lambda path: path.stem)
def test_every_setting_of_an_example_is_explained_nearby(path: Path) -> None:
    assert path.read_text(encoding="utf-8").count("#") >= 10


def test_the_countdown_example_is_the_demo() -> None:
    demo = demo_settings().model_dump()
    example = load_settings(root / "examples" / "countdown.toml").model_dump()
    example["reward"]["function"] = None
    assert example == demo


def test_the_demo_trains_256_rollouts_in_4_optimizer_steps() -> None:
    settings = demo_settings()
    assert settings.groups.groups_per_batch * settings.groups.group_size == 256
    assert settings.trainer.num_minibatches == 4
    assert settings.evaluation.num_prompts >= 256


def test_the_demo_states_only_what_it_changes_or_stresses() -> None:
    stated = tomllib.loads((root / "rollog" / "demo" / "settings.toml").read_text(encoding="utf-8"))
    assert "path" not in stated["model"]
    assert not {"train", "held_out"} & set(stated["data"])


@pytest.mark.parametrize(
    ("response", "expected"), [("It is 42.", 1.0), ("42 or 43", 0.0), ("no idea", 0.0), ("", 0.0)]
)
def test_the_example_reward_looks_at_the_last_number(
    response: str, expected: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(root)
    last_number = load_reward_function("examples.rewards:last_number")
    assert last_number("What is 17 + 25?", response, answer=42, id="17-25")["reward"] == expected
