"""`rollog bench accelerator` and `rollog bench training`: how fast the real engines are, together and alone."""

from __future__ import annotations

import tempfile
from pathlib import Path

import click

from benchmarks.harness.options import BenchOptions, bench_options, numbers, own_broker, report
from benchmarks.harness.random_model import shapes

_libraries = ("torch", "transformers", "deepspeed")


@click.command()
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
) -> int:
    """Measure the whole loop on this machine's device: tokens generated and trained, reloads, and time in between.

    vLLM and DeepSpeed share one GPU, or this machine's processors where there is none; the model is random.
    """
    import torch  # noqa: PLC0415  # help needs none of it

    from benchmarks.accelerator.accelerator import Workload, measure_accelerator  # noqa: PLC0415  # help needs none of it
    from rollog.kernel.broker.kafka import KafkaBroker  # noqa: PLC0415

    workload = Workload(
        shape=shape,
        config=config,
        dtype=dtype,
        max_context_tokens=context,
        num_steps=num_steps,
        seed=options.seed,
        assignments=assignments,
    )
    with own_broker(options.home) as (directory, address):
        figures = measure_accelerator(
            workload=workload,
            alphas=alphas,
            broker=KafkaBroker(address),
            address=address,
            home=directory / "home",
            on_progress=lambda line: click.echo(line, err=True),
        )
    words = "".join(f" --set {assignment}" for assignment in assignments)
    command = (
        f"rollog bench accelerator --model {shape} --config {config} --alphas {','.join(f'{a:g}' for a in alphas)} "
        f"--steps {num_steps} --dtype {dtype} --context {context} --seed {options.seed}{words}"
    )
    report(
        figures,
        command,
        options,
        libraries=(*_libraries, "vllm"),
        details={"device": torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"},
    )
    return 0


@click.command()
@click.option(
    "--rounds",
    "num_rounds",
    type=click.IntRange(min=1),
    default=10,
    show_default=True,
    help="Training steps of each model that are timed, after one that is not.",
)
@click.option(
    "--threads",
    "num_threads",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="CPU threads of every loop.",
)
@bench_options
def training(*, num_rounds: int, num_threads: int, options: BenchOptions) -> int:
    """Measure the training engine: tokens per second against a bare PyTorch loop on the same batches, and packing.

    The demo's model and one of 6 million parameters, in one process without broker; engine, bare loop and packed
    engine take turns.
    """
    from benchmarks.training.training_speed import (  # noqa: PLC0415  # help needs none of it
        demo_workload,
        larger_workload,
        measure_training,
    )
    from rollog.demo.model import new_model, vocabulary  # noqa: PLC0415
    from rollog.demo.word_models import save_model  # noqa: PLC0415

    with tempfile.TemporaryDirectory(prefix="rollog-bench-") as directory:
        demo, larger = Path(directory) / "demo", Path(directory) / "larger"
        save_model(new_model(options.seed), demo)
        figures = measure_training(
            [demo_workload(demo, len(vocabulary)), larger_workload(larger, options.seed)],
            num_rounds=num_rounds,
            num_threads=num_threads,
            seed=options.seed,
            on_progress=lambda line: click.echo(line, err=True),
        )
    command = f"rollog bench training --rounds {num_rounds} --threads {num_threads} --seed {options.seed}"
    report(figures, command, options, libraries=_libraries)
    return 0
