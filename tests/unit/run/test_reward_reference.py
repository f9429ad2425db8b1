"""Reward functions by the name under which other processes import them, or why they cannot."""

from __future__ import annotations

import functools
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from support.loop_rewards import even_words

from rollog.kernel.errors import ConfigError
from rollog.run.reward_reference import reward_reference, search_path

if TYPE_CHECKING:
    from collections.abc import Callable

root = Path(__file__).parents[3]


class Rewards:
    @staticmethod
    def right(prompt: object, response: str) -> float:
        del prompt, response
        return 1.0


def a_function_within_this_one() -> Callable[..., object]:
    def within(prompt: object, response: str) -> float:
        del prompt, response
        return 1.0

    return within


def test_a_function_of_a_module_is_named_by_both() -> None:
    assert reward_reference(even_words) == "support.loop_rewards:even_words"


@pytest.mark.parametrize(
    ("reward", "said"),
    [
        (lambda *_: 1.0, "is a lambda"),
        (a_function_within_this_one(), "stands within a function or a class"),
        (Rewards.right, "stands within a function or a class"),
        (functools.partial(even_words, prompt=""), "has no name to be imported by"),
    ],
)
def test_what_no_other_process_can_import_is_refused_with_the_remedy(
    reward: Callable[..., object], said: str
) -> None:
    with pytest.raises(ConfigError, match=said) as refused:
        reward_reference(reward)
    assert "my_rewards.py" in str(refused.value)


def test_a_wrapper_that_took_the_name_of_another_function_is_refused() -> None:
    @functools.wraps(even_words)
    def wrapper(prompt: str, response: str) -> float:
        return even_words(prompt, response) / 2

    with pytest.raises(ConfigError, match="is another object"):
        reward_reference(wrapper)


def told(*command: str, cwd: Path) -> str:
    ended = subprocess.run(
        [sys.executable, *command],
        cwd=cwd,
        env={"PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
        check=False,
    )
    return ended.stdout + ended.stderr


script = """
from rollog.run.reward_reference import refuse_within_a_role, reward_reference, search_path
def reward(prompt, response):
    return 1.0
refuse_within_a_role()
print(reward_reference(reward), search_path(reward_reference(reward)))
"""


def test_a_function_of_a_script_is_named_by_the_script_and_found_beside_it(tmp_path: Path) -> None:
    (tmp_path / "scripts").mkdir()
    (tmp_path / "scripts" / "my_run.py").write_text(script)
    said = told("scripts/my_run.py", cwd=tmp_path)
    assert said.startswith("my_run:reward {'PYTHONPATH': ")
    assert str(tmp_path / "scripts") in said
    assert told("my_run.py", cwd=tmp_path / "scripts").strip() == "my_run:reward {}"


def test_a_function_of_a_session_or_of_a_script_that_is_no_module_is_refused(tmp_path: Path) -> None:
    assert "interactive session or a notebook" in told("-c", script, cwd=tmp_path)
    (tmp_path / "my-run.py").write_text(script)
    assert "my-run.py, which cannot be imported" in told("my-run.py", cwd=tmp_path)


def test_a_run_is_not_started_by_a_process_that_only_imports_a_reward(tmp_path: Path) -> None:
    (tmp_path / "unguarded.py").write_text("import rollog\nrollog.up()\n")
    code = (
        "import sys, types\n"
        "sys.modules['__main__'].__spec__ = types.SimpleNamespace(name='producers.rewards.process')\n"
    )
    assert 'under `if __name__ == "__main__":`' in told("-c", code + "import unguarded", cwd=tmp_path)


def test_what_children_find_anyway_or_nobody_finds_needs_no_search_path() -> None:
    for reference in (None, "rollog.demo.countdown:reward", "json:dumps", "no_such_module:reward"):
        assert search_path(reference) == {}
