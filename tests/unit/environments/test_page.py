"""The examples of the page on environments work as they stand there."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from producers.environments.episode import Bounds, Episode
from producers.environments.names import EnvironmentSpec, environments, make_environment
from producers.environments.process import EnvironmentLimits

if TYPE_CHECKING:
    import pytest

page = (Path(__file__).parents[3] / "docs" / "environments.md").read_text(encoding="utf-8")
examples = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)


def test_the_users_own_environment_plays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_environments.py").write_text(examples[0], encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    episode = Episode(make_environment("my_environments:Sum", {}), Bounds())
    a, b = re.findall(r"\d+", episode.reset(3).text)
    assert episode.step("7").observation.text == "try again"
    result = episode.step(f" {int(a) + int(b)}\n")
    assert (result.reward, result.is_over) == (1.0, True)
    episode.reset(3)
    assert [episode.step("x").truncated for _ in range(3)] == [False, False, True]
    episode.close()


def test_the_agent_that_plays_is_rewarded() -> None:
    names: dict[str, Any] = {}
    exec(examples[1], names)  # our own page
    turns = iter(range(1, 51))
    assert 0.0 <= asyncio.run(names["play"](lambda _seen: str(next(turns)))) <= 1.0


def test_the_other_examples_name_environments_that_exist() -> None:
    for example in examples[2:]:
        spec = eval(example, {"EnvironmentSpec": EnvironmentSpec})  # our own page
        assert spec.environment in environments


def test_every_name_and_every_limit_is_on_the_page() -> None:
    first_words = set(re.findall(r"^\| `(\w+)`", page, flags=re.MULTILINE))
    assert set(environments) <= first_words
    assert set(EnvironmentLimits.__slots__) <= first_words
