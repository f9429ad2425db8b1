"""Which settings go with late rewards."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from rollog.kernel.errors import ConfigError
from rollog.settings.settings import Settings, check_files

if TYPE_CHECKING:
    from pathlib import Path


def settings(**sections: dict[str, Any]) -> Settings:
    return Settings.model_validate(sections)


def test_without_late_rewards_nothing_waits() -> None:
    assert not settings().reward.late


@pytest.mark.parametrize(
    ("sections", "words"),
    [
        ({"reward": {"late": True, "control": "shuffled"}}, "shuffled"),
        ({"reward": {"late": True, "deadline_seconds": 0}}, "greater than 0"),
        (
            {"reward": {"late": True}, "environment": {"name": "games:Guess"}},
            "gives its episodes their rewards",
        ),
        (
            {
                "reward": {"late": True},
                "data": {"train": "tasks.jsonl"},
                "agent": {"function": "agents:run", "reward": "agent"},
            },
            "the reward that the agent returns",
        ),
    ],
)
def test_what_does_not_go_with_late_rewards_is_refused(
    sections: dict[str, dict[str, Any]], words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        settings(**sections)


def test_a_reward_function_is_needed_for_held_out_prompts_alone(tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"prompt": "1"}\n')
    late = {"late": True}
    check_files(settings(data={"train": str(prompts)}, reward=late))
    with pytest.raises(ConfigError, match="needs a reward function"):
        check_files(settings(data={"train": str(prompts), "held_out": str(prompts)}, reward=late))
