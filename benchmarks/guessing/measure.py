"""`rollog up --config examples/guessing.toml` over several run seeds, and its negative control.

Each run is a process of its own with real parts: Apache Kafka, vLLM, DeepSpeed, environments in their processes.
The control gives each training episode the reward of another. Beside the figures stand two policies that learn nothing:
one that guesses blindly in the first range, and one that halves what is left.
"""

from __future__ import annotations

import random
import time
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

from benchmarks.demo.measure import Summary, run_demo
from benchmarks.harness.figures import Figure, t_interval
from rollog.demo import guessing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

config = Path("examples") / "guessing.toml"
control_limit = 0.05
_num_blind_games = 20_000


def measure_guessing(
    *, seeds: Iterable[int], control_seeds: Iterable[int], home: Path, on_progress: Callable[[str], None]
) -> tuple[list[Figure], dict[str, object]]:
    """All figures, and the summaries they come from as entries of a results file."""
    mark = time.strftime("%m%d%H%M%S")
    runs, controls = [], []
    for seed in seeds:
        runs.append(run_demo(home, f"guessing-{seed}-{mark}", {"run.seed": seed}, config))
        on_progress(f"seed {seed}: held-out reward {runs[-1]['held_out_after']:.3f}")
    for seed in control_seeds:
        assignments = {"run.seed": seed, "reward.control": "shuffled"}
        controls.append(run_demo(home, f"guessing-control-{seed}-{mark}", assignments, config))
        on_progress(f"control {seed}: held-out reward {controls[-1]['held_out_after']:.3f}")
    return figures_of(runs, controls), {"runs": runs, "controls": controls}


def figures_of(runs: Sequence[Summary], controls: Sequence[Summary]) -> list[Figure]:
    """Means over seeds, with the reward of the two fixed policies beside them."""
    found = []
    for suffix in ("", "_sampled"):
        for moment in ("before", "after"):
            values = [float(run[f"held_out_{moment}{suffix}"]) for run in runs]
            found.append(_figure(f"guessing.held_out_{moment}{suffix}", values))
        rises = [each[f"held_out_after{suffix}"] - each[f"held_out_before{suffix}"] for each in controls]
        if rises:
            name = f"guessing.control{suffix}_rise"
            found.append(_figure(name, rises, target=control_limit, higher_is_better=False))
    found.append(_figure("guessing.blind", [blind_reward()]))
    found.append(_figure("guessing.halving", [halving_reward()]))
    found.append(_figure("guessing.step", [run["step_seconds"]["total"] for run in runs], unit="s/step"))
    return found


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


def _figure(
    name: str,
    values: Sequence[float],
    *,
    unit: str = "reward",
    target: float | None = None,
    higher_is_better: bool = True,
) -> Figure:
    return Figure(
        name=name,
        value=round(fmean(values), 4),
        unit=unit,
        target=target,
        higher_is_better=higher_is_better,
        interval=t_interval(values),
        num_draws=len(values),
    )
