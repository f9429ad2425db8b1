"""`python -m benchmarks.weights`: what it takes to move the weights of a version."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import click

from benchmarks.harness.options import (
    BenchOptions,
    bench_options,
    count_option,
    numbers,
    parts_option,
    progress,
    report,
    run,
)
from benchmarks.harness.random_model import shapes
from benchmarks.weights.parts import parts

if TYPE_CHECKING:
    from benchmarks.harness.figures import Figure


@click.command("weights")
@parts_option(parts, ",".join(parts))
@click.option(
    "--shape",
    type=click.Choice(list(shapes)),
    default="0.1b",
    show_default=True,
    help="The model that is trained, with random weights.",
)
@click.option(
    "--rates",
    callback=numbers(float),
    default="1e-6,3e-6",
    show_default=True,
    help="Learning rates, constant over all steps.",
)
@click.option(
    "--optimizer-steps",
    callback=numbers(int),
    default="1,4",
    show_default=True,
    help="Optimizer steps from one version to the next.",
)
@count_option(
    "--steps", "num_steps", 20, "Versions after version 0, for each rate and number of optimizer steps."
)
@click.option(
    "--beside-shape",
    type=click.Choice(list(shapes)),
    default="0.5b",
    show_default=True,
    help="Sizes of the tensors that are published beside training.",
)
@bench_options
def weights(
    *,
    only: tuple[str, ...],
    shape: str,
    rates: tuple[float, ...],
    optimizer_steps: tuple[int, ...],
    num_steps: int,
    beside_shape: str,
    options: BenchOptions,
) -> None:
    """Measure weights on their way.

    Patches: a model in bfloat16 is trained by the trainer's engine with a policy-gradient loss on random responses, and
    every version is coded as a patch of the one before. Seconds are processor time of one thread, and stand beside
    those of the memory traffic that cannot be avoided. No broker and no GPU is needed; 0.1b takes 6 GB of memory.

    Beside: the whole loop with tensors of a model and steps of 5 seconds, over the broker in memory. A step is a wait
    in place of an accelerator's work; 0.5b takes 5 GB of memory and 12 GB of disk.
    """
    from benchmarks.weights.beside import measure_beside
    from benchmarks.weights.patches import measure_patches

    figures: list[Figure] = []
    details: dict[str, object] = {}
    if "patches" in only:
        figures, details = measure_patches(
            shape=shapes[shape],
            rates=rates,
            optimizer_steps=optimizer_steps,
            num_steps=num_steps,
            seed=options.seed,
            on_progress=progress,
        )
    if "beside" in only:
        with tempfile.TemporaryDirectory(prefix="rollog-weights-") as home:
            figures += measure_beside(
                shape=shapes[beside_shape], home=Path(home), seed=options.seed, on_progress=progress
            )
    report(figures, options, libraries=("torch", "transformers", "numpy", "zstandard"), details=details)


if __name__ == "__main__":
    run(weights)
