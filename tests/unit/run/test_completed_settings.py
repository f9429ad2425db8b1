"""What a configuration is completed with before its run is created."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from rollog.run.creation import complete
from rollog.settings.settings import Settings

if TYPE_CHECKING:
    from pathlib import Path


def completed(tmp_path: Path, **sections: dict[str, Any]) -> Settings:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"prompt": "a"}\n', encoding="utf-8")
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}", encoding="utf-8")
    named = Settings().changed(
        model={"path": str(tmp_path / "model")}, data={"train": str(prompts)}, **sections
    )
    return complete(named, tmp_path / "home", lambda _what, _fraction: None)


@pytest.mark.parametrize(
    "sections",
    [{"agent": {"function": "my_agent:run", "reward": "agent"}}, {"reward": {"late": True}}],
)
def test_a_run_that_gets_its_rewards_elsewhere_has_none_of_the_demo(
    tmp_path: Path, sections: dict[str, Any]
) -> None:
    assert completed(tmp_path, **sections).reward.identity is None
