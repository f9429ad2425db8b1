"""What sums of reasoning-gym teach: `rollog up --config examples/reasoning_gym.toml` over several run seeds.

Beside the rewards stands how long the answers are that were trained: a sum that is worked out takes more words.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.harness.example_runs import learning_figures, mean_figure, measure_example

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from benchmarks.harness.figures import Figure

config = Path("examples") / "reasoning_gym.toml"


def measure_sums(
    *, seeds: Iterable[int], control_seeds: Iterable[int], home: Path, on_progress: Callable[[str], None]
) -> tuple[list[Figure], dict[str, object]]:
    """All figures, and the summaries they come from as entries of a results file."""
    runs, controls = measure_example(
        "sums", config, seeds=seeds, control_seeds=control_seeds, home=home, on_progress=on_progress
    )
    lengths = [run["tokens_trained"] / run["samples_trained"] for run in runs]
    figures = [*learning_figures("sums", runs, controls), mean_figure("sums.answer", lengths, unit="tokens")]
    return figures, {"runs": runs, "controls": controls}
