"""`python -m benchmarks.demo`: what the demo learns and how long it takes, over several seeds."""

from __future__ import annotations

import click

from benchmarks.harness.options import (
    BenchOptions,
    bench_options,
    report_runs_and_controls,
    run,
    run_and_control_options,
)


@click.command("demo")
@run_and_control_options("the demo", "sample")
@bench_options
def demo(*, num_seeds: int, num_controls: int, options: BenchOptions) -> None:
    """Measure the demo: `rollog up` as a user runs it, beside a bare loop on the same settings and seed.

    Each run has its own embedded Apache Kafka, vLLM and DeepSpeed below --home, and stays there.
    """
    from benchmarks.demo.measure import measure_demo

    report_runs_and_controls(measure_demo, options, num_seeds=num_seeds, num_controls=num_controls)


if __name__ == "__main__":
    run(demo)
