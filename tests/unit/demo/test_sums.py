"""Sums in the words of the demo's kind of model: as reasoning-gym asks them, and as its scorer takes their answers."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from producers.dispatcher.episode_seeds import held_out_seeds
from rollog.demo import sums
from rollog.demo.prepare import made_for
from rollog.demo.settings import WarmStartSettings
from rollog.demo.word_models import eos_token
from rollog.demo.word_task import sums_task
from rollog.settings.sources import load_settings

example = load_settings(Path(__file__).resolve().parents[3] / "examples" / "reasoning_gym.toml")
parameters: dict[str, Any] = dict(example.environment.parameters)


def read(question: str) -> sums.Sum:
    first, *others = question.removeprefix(sums.introduction).removesuffix("=").split()
    return sums.Sum(("+", *others[::2]), tuple(map(int, (first, *others[1::2]))))


def test_a_sum_is_worked_out_from_left_to_right_or_answered_at_once() -> None:
    asked = sums.Sum(("+", "-", "+", "-"), (4, 1, 7, 9))
    assert asked.question == f"{sums.introduction} 4 - 1 + 7 - 9 ="
    assert asked.answer(worked_out=True) == "- 1 3 + 7 10 - 9 1 <answer> 1 </answer>"
    assert asked.answer(worked_out=False) == "<answer> 1 </answer>"


def test_both_answers_to_every_question_of_the_example_are_right_and_of_known_words() -> None:
    items = pytest.importorskip("producers.environments.adapters.reasoning_gym_items")
    item = items.ReasoningGymItem(**parameters)
    lengths = set()
    for seed in [*range(400), *range(held_out_seeds, held_out_seeds + 256)]:
        question = item.reset(seed).text
        asked = read(question)
        assert asked.question == question
        lengths.add(len(asked.numbers))
        for worked_out in (True, False):
            answer = asked.answer(worked_out=worked_out)
            assert item.step(answer).reward == 1.0
            num_tokens = len(sums_task.encode(f"{answer} {eos_token}"))
            assert num_tokens <= example.sampling.max_tokens
            assert len(sums_task.encode(question)) + num_tokens <= sums_task.max_context_tokens
    assert lengths == set(range(sums.fewest_terms, sums.most_terms + 1))


def test_few_held_out_questions_of_the_example_are_those_of_training() -> None:
    items = pytest.importorskip("producers.environments.adapters.reasoning_gym_items")
    item = items.ReasoningGymItem(**parameters)
    environment = example.environment
    training = {item.reset(seed).text for seed in range(environment.num_train)}
    held_out = [item.reset(held_out_seeds + seed).text for seed in range(environment.num_held_out)]
    assert sum(question in training for question in held_out) / len(held_out) < 0.02


def test_only_answers_are_learnt_and_all_are_worked_out_while_formats_are_practised() -> None:
    settings = WarmStartSettings(batch_size=200, work_out=0.3)
    for practises, least, most in ((True, 200, 200), (False, 40, 80)):
        worked_out = 0
        for token_ids, is_learnt in sums_task.examples(random.Random(0), settings, practises):
            pairs = zip(token_ids, is_learnt, strict=True)
            said = [sums_task.words[token] for token, learnt in pairs if learnt]
            asked = read(" ".join(map(sums_task.words.__getitem__, token_ids[: -len(said)])))
            worked_out += said[0] != sums.opening
            assert said == [*asked.answer(worked_out=said[0] != sums.opening).split(), eos_token]
        assert least <= worked_out <= most


@pytest.mark.parametrize(
    "changed",
    [
        {"dataset": "gcd"},
        {"answer_tag": "said"},
        {"configuration": {"max_digits": 2}},
        {"configuration": None},
        {"configuration": {"max_digits": 1, "max_terms": 9}},
        {"level": [2, 5]},
        {"level": 5},
        {"level": None},
        {"level": "2"},
    ],
)
def test_a_model_is_made_for_the_examples_alone(changed: dict[str, Any]) -> None:
    assert made_for("rollog.demo.guessing:Guessing", {}) == "guessing"
    assert made_for("reasoning_gym", parameters) == "sums"
    assert made_for("reasoning_gym", parameters | changed) is None
    assert made_for("guess_number", parameters) is None
