"""`python -m benchmarks.demo`: what the demo learns and how long it takes, over several seeds."""

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


@click.command("demo")
@run_and_control_options("the demo", "sample")
@bench_options
def demo(*, num_seeds: int, num_controls: int, options: BenchOptions) -> None:
    """Measure the demo: `rollog up` as a user runs it, beside a bare loop on the same settings and seed.

    Each run has its own embedded Apache Kafka, vLLM and DeepSpeed below --home, and stays there.
    """
    from benchmarks.demo.measure import measure_demo

    figures, details = measure_demo(
        seeds=range(options.seed, options.seed + num_seeds),
        control_seeds=range(options.seed, options.seed + num_controls),
        home=options.home,
        on_progress=progress,
    )
    libraries = ("torch", "transformers", "deepspeed", "vllm")
    report(figures, options, libraries=libraries, details=details)


if __name__ == "__main__":
    run(demo)
