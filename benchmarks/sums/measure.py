"""What sums of reasoning-gym teach: `rollog up --config examples/reasoning_gym.toml` over several run seeds.

Beside the rewards stands how long the answers of the first and the last step are, as a sum that is worked out takes
more words, and how many held-out questions the model has met: warm start and dataset both draw sums at random.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.harness.example_runs import learning_figures, measure_example
from benchmarks.harness.figures import mean_figure
from producers.dispatcher.episode_seeds import held_out_seeds
from producers.environments.adapters.reasoning_gym_items import ReasoningGymItem
from rollog.demo.prepare import warm_start_seed
from rollog.demo.settings import WarmStartSettings
from rollog.demo.word_task import sums_task
from rollog.settings.sources import load_settings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from benchmarks.harness.example_runs import Summary
    from benchmarks.harness.figures import Figure

config = Path("examples") / "reasoning_gym.toml"


def measure_sums(
    *, seeds: Iterable[int], control_seeds: Iterable[int], home: Path, on_progress: Callable[[str], None]
) -> tuple[list[Figure], dict[str, object]]:
    """All figures, and the summaries they come from as entries of a results file."""
    runs, controls = measure_example(
        "sums", config, seeds=seeds, control_seeds=control_seeds, home=home, on_progress=on_progress
    )
    return figures_of(runs, controls), {"runs": runs, "controls": controls}


def figures_of(runs: Sequence[Summary], controls: Sequence[Summary]) -> list[Figure]:
    """Means over seeds."""
    return [
        *learning_figures("sums", runs, controls),
        mean_figure("sums.answer_at_first", "tokens", [run["tokens_by_step"][0] for run in runs]),
        mean_figure("sums.answer_at_last", "tokens", [run["tokens_by_step"][-1] for run in runs]),
        mean_figure("sums.held_out_met", "share", [share_met()], higher_is_better=False),
    ]


def share_met() -> float:
    """Share of the held-out questions that the warm start demonstrates, or that training may ask."""
    asked = load_settings(config).environment
    met = {*demonstrated(), *questions(range(asked.num_train))}
    held_out = list(questions(range(held_out_seeds, held_out_seeds + asked.num_held_out)))
    return sum(question in met for question in held_out) / len(held_out)


def questions(seeds: Iterable[int]) -> Iterator[str]:
    """What the example asks at these seeds."""
    parameters: dict[str, Any] = dict(load_settings(config).environment.parameters)
    item = ReasoningGymItem(**parameters)
    return (item.reset(seed).text for seed in seeds)


def demonstrated() -> Iterator[str]:
    """The questions of the warm start, which draws as many and the same whether it practises or not."""
    settings = WarmStartSettings()
    rng = random.Random(warm_start_seed)
    for _ in range(settings.num_steps):
        for token_ids, is_learnt in sums_task.examples(rng, settings, False):
            pairs = zip(token_ids, is_learnt, strict=True)
            yield " ".join(sums_task.words[token] for token, learnt in pairs if not learnt)
