"""`python -m benchmarks.sums`: what a small model learns of sums of reasoning-gym, over several seeds."""

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


@click.command("sums")
@run_and_control_options("the example", "episode")
@bench_options
def sums(*, num_seeds: int, num_controls: int, options: BenchOptions) -> None:
    """Measure what `rollog up --config examples/reasoning_gym.toml` learns.

    Each run has its own embedded Apache Kafka, vLLM and DeepSpeed below --home, and stays there.
    """
    from benchmarks.sums.measure import measure_sums

    figures, details = measure_sums(
        seeds=range(options.seed, options.seed + num_seeds),
        control_seeds=range(options.seed, options.seed + num_controls),
        home=options.home,
        on_progress=progress,
    )
    libraries = ("torch", "transformers", "deepspeed", "vllm")
    report(figures, options, libraries=libraries, details=details)


if __name__ == "__main__":
    run(sums)
