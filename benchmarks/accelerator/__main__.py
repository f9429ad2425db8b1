"""`python -m benchmarks.accelerator`: the whole loop on one device, and where its time goes."""

from __future__ import annotations

from pathlib import Path

import click

from benchmarks.harness.options import BenchOptions, bench_options, numbers, progress, report, run
from benchmarks.harness.random_model import shapes


@click.command("accelerator")
@click.option(
    "--model",
    "shape",
    type=click.Choice(list(shapes)),
    default="0.5b",
    show_default=True,
    help="Size of the randomly initialised model.",
)
@click.option(
    "--config",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    default=Path("examples/one_gpu.toml"),
    show_default=True,
    help="Settings of the runs, but for model, data, reward, alpha and length.",
)
@click.option(
    "--alphas", callback=numbers(float), default="0,1", show_default=True, help="Values of freshness.alpha."
)
@click.option(
    "--steps", "num_steps", type=click.IntRange(min=2), default=10, show_default=True, help="Of each run."
)
@click.option("--dtype", default="bfloat16", show_default=True, help="Of weights and activations.")
@click.option("--context", type=click.IntRange(min=1), default=1024, show_default=True, help="Most tokens.")
@click.option("--set", "assignments", multiple=True, metavar="SECTION.KEY=VALUE", help="Change a setting.")
@bench_options
def accelerator(
    *,
    shape: str,
    config: Path,
    alphas: tuple[float, ...],
    num_steps: int,
    dtype: str,
    context: int,
    assignments: tuple[str, ...],
    options: BenchOptions,
) -> None:
    """Measure the whole loop on this machine's device: tokens generated and trained, reloads, and time in between.

    vLLM and DeepSpeed share one GPU, or this machine's processors where there is none; the model is random.
    """
    import torch

    from benchmarks.accelerator.measure import Workload, measure_accelerator
    from benchmarks.harness.own_kafka import own_kafka

    workload = Workload(
        shape=shape,
        config=config,
        dtype=dtype,
        max_context_tokens=context,
        num_steps=num_steps,
        seed=options.seed,
        assignments=assignments,
    )
    with own_kafka(options.home) as kafka:
        figures = measure_accelerator(workload=workload, alphas=alphas, kafka=kafka, on_progress=progress)
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    libraries = ("torch", "transformers", "deepspeed", "vllm")
    report(figures, options, libraries=libraries, details={"device": device})


if __name__ == "__main__":
    run(accelerator)
