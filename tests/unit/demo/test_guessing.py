"""The game of several turns: its rules, its split, and the demonstrations of its warm start."""

from __future__ import annotations

import random

import pytest

from producers.dispatcher.episode_seeds import episode_prompts, held_out_seeds
from producers.environments.process import EnvironmentLimits
from rollog.demo import guessing
from rollog.demo.settings import WarmStartSettings
from rollog.demo.word_models import eos_token_id
from rollog.demo.word_task import guessing_task
from rollog.settings.environment import EnvironmentConfig


def played(seed: int) -> tuple[guessing.Guessing, guessing.Game]:
    environment = guessing.Guessing()
    low, _, high, _ = environment.reset(seed).text.split()
    fitting = guessing.games(held_out=seed >= guessing.held_out_seeds)
    game = fitting[seed % guessing.held_out_seeds % len(fitting)]
    assert (game.low, game.high) == (int(low), int(high))
    return environment, game


def test_a_guess_is_answered_by_what_is_left_and_finding_the_number_ends_the_game() -> None:
    environment, game = played(3)
    wrong = game.low if game.secret > game.low else game.high
    answer = environment.step(str(wrong))
    low, high = (wrong + 1, game.high) if wrong < game.secret else (game.low, wrong - 1)
    assert answer.observation.text == f"{'higher' if wrong < game.secret else 'lower'} {low} .. {high} :"
    found = environment.step(str(game.secret))
    assert found.is_over
    assert found.reward == pytest.approx(5 / 6)


@pytest.mark.parametrize("said", ["", "7 8", "seven", "-3", "٣"])
def test_what_is_no_number_costs_a_turn(said: str) -> None:
    environment, game = played(3)
    answer = environment.step(said)
    assert answer.observation.text == f"what {game.low} .. {game.high} :"
    assert (answer.reward, answer.is_over) == (0.0, False)


def test_no_game_is_on_both_sides_of_the_split_and_seeds_choose_the_side() -> None:
    train, held_out = (guessing.games(held_out=side) for side in (False, True))
    assert not set(train) & set(held_out)
    assert (len(train), len(held_out)) == (3596, 716)
    assert held_out_seeds == guessing.held_out_seeds
    prompts, others = episode_prompts(EnvironmentConfig(name="x", num_train=2, num_held_out=1))
    assert [each.prompt_id for each in (*prompts, *others)] == ["seed-0", "seed-1", f"seed-{held_out_seeds}"]
    assert played(held_out_seeds + 5)[1].is_held_out


def test_demonstrations_that_heed_the_answers_never_leave_the_range() -> None:
    rng = random.Random(0)
    for game in guessing.games(held_out=False)[:200]:
        state = guessing.Played.new(game)
        for guess, _ in guessing.demonstration(game, rng, heed_answers=1.0):
            assert state.low <= guess <= state.high
            state.answer(guess)


def test_only_guesses_and_their_ends_are_learnt() -> None:
    token_ids, is_learnt = guessing_task.examples(random.Random(0), WarmStartSettings(batch_size=1), True)[0]
    words = [guessing_task.words[token] for token, learnt in zip(token_ids, is_learnt, strict=True) if learnt]
    assert words[1::2] == [guessing_task.words[eos_token_id]] * (len(words) // 2)
    assert all(word.isdigit() for word in words[::2])
    assert len(token_ids) <= guessing_task.max_context_tokens


def test_a_process_holds_as_many_episodes_as_the_settings_say() -> None:
    assert (
        EnvironmentLimits(episodes_per_process=EnvironmentConfig().episodes_per_process).episodes_per_process
        == 64
    )
