"""What the game of `examples/guessing.toml` teaches, beside two policies that learn nothing.

One guesses blindly in the first range, the other halves what is left.
"""

from __future__ import annotations

import random
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

from benchmarks.harness.example_runs import learning_figures, measure_example
from benchmarks.harness.figures import mean_figure
from rollog.demo import guessing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from benchmarks.harness.figures import Figure

config = Path("examples") / "guessing.toml"
_num_blind_games = 20_000


def measure_guessing(
    *, seeds: Iterable[int], control_seeds: Iterable[int], home: Path, on_progress: Callable[[str], None]
) -> tuple[list[Figure], dict[str, object]]:
    """All figures, and the summaries they come from as entries of a results file."""
    runs, controls = measure_example(
        "guessing", config, seeds=seeds, control_seeds=control_seeds, home=home, on_progress=on_progress
    )
    fixed = {"guessing.blind": blind_reward(), "guessing.halving": halving_reward()}
    figures = [mean_figure(name, "reward", [reward]) for name, reward in fixed.items()]
    return [*learning_figures("guessing", runs, controls), *figures], {"runs": runs, "controls": controls}


def blind_reward() -> float:
    """Mean reward of guesses in the first range that heed no answer, over held-out games."""
    rng = random.Random(0)
    drawn = rng.choices(guessing.games(held_out=True), k=_num_blind_games)
    return fmean(_reward_of(list(guessing.demonstration(game, rng, heed_answers=0.0))) for game in drawn)


def halving_reward() -> float:
    """Mean reward of guessing the middle of what is left, over all held-out games."""
    return fmean(_reward_of(_halved(game)) for game in guessing.games(held_out=True))


def _halved(game: guessing.Game) -> list[tuple[int, str]]:
    played, guesses = guessing.Played.new(game), []
    for _ in range(guessing.max_turns):
        guess = (played.low + played.high) // 2
        guesses.append((guess, played.answer(guess)))
        if guess == game.secret:
            break
    return guesses


def _reward_of(guesses: Sequence[tuple[int, str]]) -> float:
    return guessing.reward_after(len(guesses)) if guesses[-1][1] == guessing.right else 0.0
