"""`python -m benchmarks.verification`: what `rollog verify` takes, against the time in which a run generated."""

from __future__ import annotations

import click

from benchmarks.harness.options import BenchOptions, bench_options, progress, report, run, seeds_option


@click.command("verification")
@seeds_option
@bench_options
def verification(*, num_seeds: int, options: BenchOptions) -> None:
    """Measure verification: every trained sample of runs of the demo, computed again.

    The runs are honest, so that anything found is a false alarm.
    """
    from benchmarks.harness.own_kafka import own_kafka
    from benchmarks.verification.measure import measure_verification

    with own_kafka(options.home) as kafka:
        figures = measure_verification(
            seeds=range(options.seed, options.seed + num_seeds), kafka=kafka, on_progress=progress
        )
    report(figures, options, libraries=("torch", "transformers", "deepspeed", "vllm"))


if __name__ == "__main__":
    run(verification)
