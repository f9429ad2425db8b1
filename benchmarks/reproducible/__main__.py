"""`python -m benchmarks.reproducible`: what pinned instructions cost a training step."""

from __future__ import annotations

import tempfile
from pathlib import Path

import click

from benchmarks.harness.options import BenchOptions, bench_options, count_option, progress, report, run


@click.command("reproducible")
@count_option("--rounds", "num_rounds", 4, "Processes of each level, in turns.")
@count_option(
    "--steps", "num_steps", 8, "Training steps of each process that are timed, after one that is not."
)
@bench_options
def reproducible(*, num_rounds: int, num_steps: int, options: BenchOptions) -> None:
    """Measure the levels of `trainer.reproducible`: CPU seconds of a step of the demo against those of `machine`.

    Instructions are pinned for a whole process, so every level has processes of its own, one after the other.
    """
    from benchmarks.reproducible.measure import measure_levels
    from rollog.demo.model import new_model
    from rollog.demo.word_models import save_model

    with tempfile.TemporaryDirectory(prefix="rollog-bench-") as directory:
        model = Path(directory) / "demo"
        save_model(new_model(options.seed), model)
        figures = measure_levels(
            model, num_rounds=num_rounds, num_steps=num_steps, seed=options.seed, on_progress=progress
        )
    report(figures, options, libraries=("torch", "transformers", "deepspeed"))


if __name__ == "__main__":
    run(reproducible)
