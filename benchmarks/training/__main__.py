"""`python -m benchmarks.training`: how fast the trainer's engine is, against a bare PyTorch loop."""

from __future__ import annotations

import tempfile
from pathlib import Path

import click

from benchmarks.harness.options import BenchOptions, bench_options, count_option, progress, report, run


@click.command("training")
@count_option(
    "--rounds", "num_rounds", 10, "Training steps of each model that are timed, after one that is not."
)
@count_option("--threads", "num_threads", 1, "CPU threads of every loop.")
@bench_options
def training(*, num_rounds: int, num_threads: int, options: BenchOptions) -> None:
    """Measure the training engine: tokens per second against a bare PyTorch loop on the same batches, and packing.

    The demo's model and one of 6 million parameters, in one process without broker; engine, bare loop and packed
    engine take turns.
    """
    from benchmarks.training.measure import measure_training
    from benchmarks.training.workloads import demo_workload, larger_workload
    from rollog.demo.model import new_model, vocabulary
    from rollog.demo.word_models import save_model

    with tempfile.TemporaryDirectory(prefix="rollog-bench-") as directory:
        demo, larger = Path(directory) / "demo", Path(directory) / "larger"
        save_model(new_model(options.seed), demo)
        figures = measure_training(
            [demo_workload(demo, len(vocabulary)), larger_workload(larger, options.seed)],
            num_rounds=num_rounds,
            num_threads=num_threads,
            seed=options.seed,
            on_progress=progress,
        )
    report(figures, options, libraries=("torch", "transformers", "deepspeed"))


if __name__ == "__main__":
    run(training)
