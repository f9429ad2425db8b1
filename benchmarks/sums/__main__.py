"""`python -m benchmarks.sums`: what a small model learns of sums of reasoning-gym, over several seeds."""

from __future__ import annotations

import click

from benchmarks.harness.options import (
    BenchOptions,
    bench_options,
    report_runs_and_controls,
    run,
    run_and_control_options,
)


@click.command("sums")
@run_and_control_options("the example", "episode")
@bench_options
def sums(*, num_seeds: int, num_controls: int, options: BenchOptions) -> None:
    """Measure what `rollog up --config examples/reasoning_gym.toml` learns.

    Each run has its own embedded Apache Kafka, vLLM and DeepSpeed below --home, and stays there.
    """
    from benchmarks.sums.measure import measure_sums

    report_runs_and_controls(measure_sums, options, num_seeds=num_seeds, num_controls=num_controls)


if __name__ == "__main__":
    run(sums)
