"""`python -m benchmarks.training`: how fast the trainer's engine is, against a bare PyTorch loop."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import click

from benchmarks.harness.options import BenchOptions, bench_options, count_option, progress, report, run

if TYPE_CHECKING:
    from benchmarks.harness.figures import Figure


@click.command("training")
@count_option(
    "--rounds", "num_rounds", 10, "Training steps of each model that are timed, after one that is not."
)
@count_option("--threads", "num_threads", 1, "CPU threads of every loop.")
@click.option(
    "--device",
    type=click.Choice(["cpu", "gpu"]),
    default="cpu",
    show_default=True,
    help="gpu: measure packed rows on a GPU.",
)
@bench_options
def training(*, num_rounds: int, num_threads: int, device: str, options: BenchOptions) -> None:
    """Measure the training engine: tokens per second against a bare PyTorch loop on the same batches, and packing.

    The demo's model and one of 6 million parameters, in one process without broker; engine, bare loop and packed
    engine take turns. With `--device gpu`: steps of a random model of 0.5 billion parameters in bfloat16, padded,
    packed under a mask, and packed with variable-length attention. That takes 60 GiB of the GPU's memory.
    """
    measured = _on_gpu if device == "gpu" else _on_cpu
    with tempfile.TemporaryDirectory(prefix="rollog-bench-") as directory:
        figures = measured(Path(directory), num_rounds, num_threads, options.seed)
    report(figures, options, libraries=("torch", "transformers", "deepspeed"))


def _on_cpu(directory: Path, num_rounds: int, num_threads: int, seed: int) -> list[Figure]:
    from benchmarks.training.measure import measure_training
    from benchmarks.training.workloads import demo_workload, larger_workload
    from rollog.demo.model import new_model, vocabulary
    from rollog.demo.word_models import save_model

    demo, larger = directory / "demo", directory / "larger"
    save_model(new_model(seed), demo)
    return measure_training(
        [demo_workload(demo, len(vocabulary)), larger_workload(larger, seed)],
        num_rounds=num_rounds,
        num_threads=num_threads,
        seed=seed,
        on_progress=progress,
    )


def _on_gpu(directory: Path, num_rounds: int, num_threads: int, seed: int) -> list[Figure]:
    del num_threads  # of loops on the CPU
    from benchmarks.training.packed_attention import measure_packed_attention

    return measure_packed_attention(directory, num_rounds=num_rounds, seed=seed, on_progress=progress)


if __name__ == "__main__":
    run(training)
