"""Ready rewards in the configuration: how they are written, and what is said of mistakes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from rollog.kernel.errors import ConfigError
from rollog.run.reward_reference import search_path
from rollog.settings.named_rewards import MathReward, components_as_text, components_from_text, named_rewards
from rollog.settings.settings import Settings, check_files
from rollog.settings.sources import load_settings

judge = 'name = "judge", address = "http://judge/v1", model = "m", template = "{response}"'
several = """
[[reward.components]]
name = "math"
field = "solution"

[[reward.components]]
name = "format"
weight = 0.1
tags = ["think", "answer"]

[[reward.components]]
name = "my_rewards:f"
weight = -0.5
label = "mine"
"""


def loaded(tmp_path: Path, text: str, *assignments: str) -> Settings:
    (tmp_path / "run.toml").write_text(text)
    settings = load_settings(tmp_path / "run.toml", assignments=assignments)
    check_files(settings)
    return settings


def test_components_are_read_from_a_file_and_kept_in_the_manifest(tmp_path: Path) -> None:
    settings = loaded(tmp_path, several)

    assert settings.reward.components[0] == MathReward(name="math", field="solution")
    assert settings.reward.identity == "1 * math + 0.1 * format + -0.5 * mine"
    assert settings.reward.user_functions == ("my_rewards:f",)
    assert Settings.from_manifest(settings.to_manifest()) == settings
    assert components_from_text(components_as_text(settings.reward.components)) == settings.reward.components


def test_components_are_read_from_a_flag(tmp_path: Path) -> None:
    flag = 'reward.components=[{name = "math"}, {name = "format", tags = ["answer"], weight = 0.1}]'

    assert loaded(tmp_path, "", flag).reward.identity == "1 * math + 0.1 * format"


def test_a_name_stands_for_the_reward_with_its_defaults(tmp_path: Path) -> None:
    reward = loaded(tmp_path, "[reward]\nfunction = 'math'").reward

    assert (reward.identity, reward.user_functions) == ("math", ())


def test_a_judge_is_complete_with_address_model_and_template(tmp_path: Path) -> None:
    others = "[reward]\ntimeout_seconds = 90\nenvironment = ['K']\n"

    settings = loaded(tmp_path, f"{others}components = [{{{judge}, variable = 'K', bounds = [0, 1]}}]")

    assert settings.reward.identity == "1 * judge"


def test_code_has_time_with_the_defaults_in_both_forms(tmp_path: Path) -> None:
    assert loaded(tmp_path, "[reward]\nfunction = 'code'").reward.identity == "code"
    assert loaded(tmp_path, "[reward]\ncomponents = [{ name = 'code' }]").reward.identity == "1 * code"


def test_a_judge_with_the_pattern_of_its_own_may_be_asked_by_the_worker_itself(tmp_path: Path) -> None:
    others = "[reward]\ntimeout_seconds = 90\nnum_processes = 0\n"

    assert loaded(tmp_path, f"{others}components = [{{ {judge} }}]").reward.num_processes == 0


mistakes = {
    "a name that is not known": (
        'components = [{ name = "maths" }]',
        r"reward\.components\.0 = \{'name': 'maths'\}.*run\.toml.*module:function, or one of code, .*math, numeric",
    ),
    "no name": ("components = [{ weight = 1 }]", r"reward\.components\.0 .*one of code, exact"),
    "a function that is not known": (
        'function = "maths"',
        r"reward\.function = 'maths' is not of the form module:function.*ready reward: code, .*, numeric",
    ),
    "an option that is misspelt": (
        'components = [{ name = "math", feild = "x" }]',
        r"'feild' is no option of the reward 'math'; did you mean 'field'\?",
    ),
    "an option of another reward": (
        'components = [{ name = "my:f", tolerance = 1 }]',
        r"'tolerance' is no option of the reward 'my:f'; known are name, weight, label",
    ),
    "a missing option": (
        'components = [{ name = "length", target = 5 }]',
        r"the reward 'length' needs the option 'limit'",
    ),
    "a function that needs options": (
        'function = "judge"',
        r"reward\.function = 'judge': .*needs the option 'address'.*components = \[\{ name = \"judge\", \.\.\. \}\]",
    ),
    "an option of another type": (
        'components = [{ name = "math", decimals = "six" }]',
        r"reward\.components\.0\.math\.decimals = 'six'.*integer",
    ),
    "function and components": (
        'function = "math"\ncomponents = [{ name = "exact" }]',
        r"reward\.function = 'math' and reward\.components both say.*leave one out",
    ),
    "two values of one name": (
        'components = [{ name = "math" }, { name = "math", field = "other" }]',
        r"'math' names several values of the record; give each component a label",
    ),
    "a name that the record has already": (
        'components = [{ name = "math", label = "reward" }]',
        r"'reward' names something else of the record",
    ),
    "a limit below its target": (
        'components = [{ name = "length", target = 5, limit = 5 }]',
        r"limit = 5 is not above target = 5; raise it",
    ),
    "tokens without a tokenizer": (
        'components = [{ name = "length", target = 5, limit = 9, unit = "tokens" }]',
        r"unit = 'tokens' with tokenizer = None",
    ),
    "a pattern that is none": (
        'components = [{ name = "format", pattern = "(" }]',
        r"pattern = '\(' is no regular expression: missing \)",
    ),
    "a format of nothing": (
        'components = [{ name = "format" }]',
        r"'format' needs either 'pattern' or 'tags'; give one",
    ),
    "a tag twice": ('components = [{ name = "format", tags = ["a", "a"] }]', r"names a tag twice"),
    "algebra without a time-out": (
        'num_processes = 0\ncomponents = [{ name = "math" }]',
        r"reward\.num_processes = 0 leaves 'math' without a time-out; set it to 1 or more",
    ),
    "algebra as a function without a time-out": (
        'num_processes = 0\nfunction = "math"',
        r"reward\.num_processes = 0 leaves reward\.function = 'math' without a time-out",
    ),
    "code without a time-out": (
        'num_processes = 0\ncomponents = [{ name = "code" }]',
        r"reward\.num_processes = 0 leaves 'code' without a time-out; set it to 1 or more",
    ),
    "code as a function without a time-out": (
        'num_processes = 0\nfunction = "code"',
        r"reward\.num_processes = 0 leaves reward\.function = 'code' without a time-out; set it to 1 or more",
    ),
    "code without time": (
        'timeout_seconds = 5\ncomponents = [{ name = "code" }]',
        r"reward\.timeout_seconds = 5 ends a call before .*total_seconds = 6 and 3 s.*raise the first",
    ),
    "code as a function without time": (
        'timeout_seconds = 5\nfunction = "code"',
        r"reward\.timeout_seconds = 5 ends a call before .*total_seconds = 6 and 3 s.*raise the first",
    ),
    "a pattern for a judge's answer without a time-out": (
        f"num_processes = 0\ntimeout_seconds = 60\ncomponents = [{{ {judge}, pattern = '(a+)+b' }}]",
        r"reward\.num_processes = 0 leaves 'judge' without a time-out; set it to 1 or more",
    ),
    "a judge that does not see the response": (
        f"components = [{{ {judge.replace('{response}', '{prompt}')} }}]",
        r"the template does not show the response; put \{response\} into it",
    ),
    "a judge whose key does not reach it": (
        f"timeout_seconds = 60\ncomponents = [{{ {judge}, variable = 'K' }}]",
        r"variable = 'K' does not reach its process; add it to reward\.environment = \[\]",
    ),
    "a judge without time": (
        f"components = [{{ {judge} }}]",
        r"reward\.timeout_seconds = 10 ends a call before a request.*request_seconds = 30.*raise the first",
    ),
    "bounds the wrong way": (
        f"components = [{{ {judge}, bounds = [1, 0] }}]",
        r"bounds = \[1\.0, 0\.0\]: the first must be below the second",
    ),
}


@pytest.mark.parametrize("mistake", mistakes)
def test_a_mistake_is_told_with_key_value_and_remedy(tmp_path: Path, mistake: str) -> None:
    text, said = mistakes[mistake]

    with pytest.raises(ConfigError, match=said):
        loaded(tmp_path, f"[reward]\n{text}")


def test_an_address_with_a_password_is_refused_without_being_shown(tmp_path: Path) -> None:
    text = f"[reward]\ncomponents = [{{ {judge.replace('http://', 'http://me:hush@')} }}]"

    with pytest.raises(ConfigError, match="holds a user, a password or a key") as refused:
        loaded(tmp_path, text)

    assert "hush" not in str(refused.value)


def test_the_modules_of_several_rewards_are_found_by_children(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTHONPATH", raising=False)
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        (tmp_path / name / f"rewards_{name}.py").touch()
        monkeypatch.syspath_prepend(str(tmp_path / name))

    found = search_path("rewards_first:f", "rewards_second:f", "no_such_module:f", None)

    assert found == {"PYTHONPATH": f"{tmp_path / 'first'}:{tmp_path / 'second'}"}


def test_the_examples_of_the_page_are_valid(tmp_path: Path) -> None:
    page = (Path(__file__).parents[3] / "docs" / "rewards.md").read_text(encoding="utf-8")
    examples = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)

    assert [loaded(tmp_path, example).reward.identity for example in examples] == [
        "math",
        "1 * math + 0.1 * format + 0.5 * length + 0.2 * my_rewards:politeness",
        "0.1 * judge",
        None,
    ]


def test_the_page_names_every_ready_reward_and_its_needed_options() -> None:
    page = (Path(__file__).parents[3] / "docs" / "rewards.md").read_text(encoding="utf-8")
    rows = {row.split("|")[1].strip(" `"): row for row in page.splitlines() if row.startswith("| `")}

    assert set(rows) == set(named_rewards)
    for name, reward in named_rewards.items():
        needed = [key for key, field in reward.model_fields.items() if field.is_required() and key != "name"]
        assert [key for key in needed if f"`{key}`" not in rows[name]] == []
