"""`python -m benchmarks.guessing`: what a small model learns of a game of several turns, over several seeds."""

from __future__ import annotations

import click

from benchmarks.harness.options import (
    BenchOptions,
    bench_options,
    report_runs_and_controls,
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

    report_runs_and_controls(measure_guessing, options, num_seeds=num_seeds, num_controls=num_controls)


if __name__ == "__main__":
    run(guessing)
