"""`python -m benchmarks.guessing`: what a small model learns of a game of several turns, over several seeds."""

from __future__ import annotations

import click

from benchmarks.harness.options import (
    BenchOptions,
    bench_options,
    progress,
    report,
    run,
    run_and_control_options,
)


@click.command("guessing")
@run_and_control_options("the game", "episode")
@bench_options
def guessing(*, num_seeds: int, num_controls: int, options: BenchOptions) -> None:
    """Measure what `rollog up --config examples/guessing.toml` learns, beside blind guesses and halving.

    Each run has its own embedded Apache Kafka, vLLM and DeepSpeed below --home, and stays there.
    """
    from benchmarks.guessing.measure import measure_guessing

    figures, details = measure_guessing(
        seeds=range(options.seed, options.seed + num_seeds),
        control_seeds=range(options.seed, options.seed + num_controls),
        home=options.home,
        on_progress=progress,
    )
    libraries = ("torch", "transformers", "deepspeed", "vllm")
    report(figures, options, libraries=libraries, details=details)


if __name__ == "__main__":
    run(guessing)
