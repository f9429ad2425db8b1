"""`exact`, `numeric`, `format` and `length`."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from producers.rewards.choice import make_rewards
from producers.rewards.functions import RewardResult, call_reward_function
from producers.rewards.library.catalogue import function_of
from producers.rewards.library.lengths import overlong_penalty
from producers.rewards.library.texts import last_number
from rollog.demo.word_models import save_word_tokenizer, special_tokens
from rollog.kernel.errors import DataError, RewardError
from rollog.settings.generation import RewardConfig
from rollog.settings.named_rewards import components_as_text, components_from_text, named_rewards

if TYPE_CHECKING:
    from pathlib import Path


def scored(name: str, response: str, answer: Any = None, **options: Any) -> RewardResult:
    component = named_rewards[name].model_validate({"name": name, **options})
    (component,) = components_from_text(components_as_text([component]))
    return call_reward_function(function_of(component), "a prompt", response, {"answer": answer})


@pytest.mark.parametrize(
    ("answer", "response", "options", "reward"),
    [
        ("Paris", "Paris", {}, 1.0),
        ("Paris", " Paris\n", {}, 1.0),
        ("Paris", "paris", {}, 0.0),
        ("Paris", "paris", {"ignore_case": True}, 1.0),
        ("Straße", "STRASSE", {"ignore_case": True}, 1.0),
        ("Paris", "Paris.", {}, 0.0),
        ("Paris", "“Paris”!", {"ignore_punctuation": True}, 1.0),
        ("New York", "New  \n York", {}, 0.0),
        ("New York", "New  \n York", {"ignore_space": True}, 1.0),
        ("caf\u00e9", "cafe\u0301", {}, 1.0),
        (["Paris", "Lutetia"], "Lutetia", {}, 1.0),
        (42, "42", {}, 1.0),
        ("Paris", "Paris London", {}, 0.0),
        ("Paris", "Rome? No.</think>Paris", {"after": "</think>"}, 1.0),
        ("Paris", "Paris", {"after": "</think>"}, 0.0),
    ],
)
def test_the_whole_text_counts(answer: Any, response: str, options: dict[str, Any], reward: float) -> None:
    assert scored("exact", response, answer, **options).reward == reward


@pytest.mark.parametrize(
    ("answer", "response", "options", "reward"),
    [
        (42, "it is 41, no, 42.", {}, 1.0),
        (42, "42, no, 41", {}, 0.0),
        ("42", "42", {}, 1.0),
        ("so #### 1,042", "1042.0", {}, 1.0),
        (0.1, "0.1000001", {}, 1.0),
        (0.1, "0.11", {}, 0.0),
        (100, "104", {"tolerance": 5}, 1.0),
        (100, "104", {"relative_tolerance": 0.05}, 1.0),
        (-100, "-104", {"relative_tolerance": 0.05}, 1.0),
        (100, "106", {"relative_tolerance": 0.05}, 0.0),
        ([1, 2], "2", {}, 1.0),
    ],
)
def test_the_last_number_counts(answer: Any, response: str, options: dict[str, Any], reward: float) -> None:
    assert scored("numeric", response, answer, **options).reward == reward


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("-3", -3.0),
        ("−3", -3.0),
        ("10-5", 5.0),
        (".5", 0.5),
        ("1,234,567.5", 1234567.5),
        ("3e8 m/s", 3e8),
        ("x2", None),
        ("", None),
        ("1e9999", None),
        ("٤٢", None),
        ("9" * 500, None),
        ("$5", 5.0),
    ],
)
def test_numbers_are_read_as_they_are_written(text: str, number: float | None) -> None:
    assert last_number(text) == number


def test_a_response_without_a_number_has_not_answered() -> None:
    assert scored("numeric", "none", 1) == RewardResult(reward=0.0, components={"answered": 0.0})


def test_a_row_whose_answer_is_no_number_is_told() -> None:
    with pytest.raises(RewardError, match="'answer' = 'many' holds no number; name another by field"):
        scored("numeric", "1", "many")


@pytest.mark.parametrize(
    ("response", "options", "reward"),
    [
        ("<think>a</think><answer>b</answer>", {"tags": ["think", "answer"]}, 1.0),
        ("x <think>a\n</think> y\n<answer>b</answer> z", {"tags": ["think", "answer"]}, 1.0),
        ("<answer>b</answer><think>a</think>", {"tags": ["think", "answer"]}, 0.0),
        ("<think>a<answer>b</answer></think>", {"tags": ["think", "answer"]}, 0.0),
        ("<think>a</think><think></think><answer>b</answer>", {"tags": ["think", "answer"]}, 0.0),
        ("<think>a</think>", {"tags": ["think", "answer"]}, 0.0),
        ("</think>a<think>", {"tags": ["think"]}, 0.0),
        ("a\nb: 3", {"pattern": r"^a.b: \d$"}, 1.0),
        ("a\nb: 33", {"pattern": r"^a.b: \d$"}, 0.0),
        ("so \\boxed{3}", {"pattern": r"\\boxed\{\d+\}"}, 1.0),
    ],
)
def test_a_form_is_there_or_not(response: str, options: dict[str, Any], reward: float) -> None:
    assert scored("format", response, **options).reward == reward


def test_a_pattern_that_backtracks_without_end_fails_its_own_sample_only() -> None:
    config = RewardConfig.model_validate(
        {"components": [{"name": "format", "pattern": "^(a+)+$"}], "timeout_seconds": 2.0}
    )
    rewards = make_rewards(None, config)

    async def run() -> list[Any]:
        await rewards.start()
        try:
            calls = [rewards.score("p", response, {}) for response in ["a" * 64 + "b", "aa"]]
            return await asyncio.wait_for(asyncio.gather(*calls, return_exceptions=True), 60)
        finally:
            await rewards.close()

    failure, answered = asyncio.run(run())

    assert isinstance(failure, RewardError)
    assert answered.reward == 1.0


@pytest.mark.parametrize(
    ("length", "penalty"), [(0, 0.0), (80, 0.0), (85, -0.25), (90, -0.5), (100, -1.0), (1000, -1.0)]
)
def test_what_is_too_long_loses_more_the_longer_it_is(length: int, penalty: float) -> None:
    assert overlong_penalty(length, target=80, limit=100) == penalty


@pytest.mark.parametrize(("unit", "counted"), [("characters", 13), ("words", 3)])
def test_characters_and_words_are_counted(unit: str, counted: float) -> None:
    result = scored("length", "one two\nthree", target=0, limit=100, unit=unit)

    assert result == RewardResult(reward=-counted / 100, components={unit: counted})


def test_tokens_are_those_of_the_named_tokenizer(tmp_path: Path) -> None:
    save_word_tokenizer(tmp_path, [*special_tokens, "one", "two"], 64)

    result = scored("length", "one two two", target=1, limit=5, unit="tokens", tokenizer=str(tmp_path))

    assert result == RewardResult(reward=-0.5, components={"tokens": 3.0})


def test_a_tokenizer_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"tokenizer = .*, where there is no tokenizer\.json"):
        scored("length", "", target=1, limit=5, unit="tokens", tokenizer=str(tmp_path))
