"""`python -m benchmarks.accuracy`: the time to the demo's target accuracy, synchronous against asynchronous."""

from __future__ import annotations

import click

from benchmarks.harness.options import (
    BenchOptions,
    bench_options,
    numbers,
    progress,
    report,
    run,
    seeds_option,
    target_option,
)


def _alphas(context: click.Context, parameter: click.Parameter, value: str) -> tuple[float, ...]:
    alphas = tuple(sorted(numbers(float)(context, parameter, value)))
    if alphas[0] != 0 or len(alphas) == 1:
        raise click.BadParameter(
            f"{value!r}: give 0, which the others are compared with, and at least one more"
        )
    return alphas


@click.command("accuracy")
@click.option(
    "--alphas",
    callback=_alphas,
    default="0,1,2",
    show_default=True,
    help="Values of freshness.alpha, 0 first.",
)
@seeds_option
@target_option
@bench_options
def accuracy(*, alphas: tuple[float, ...], num_seeds: int, target: float, options: BenchOptions) -> None:
    """Measure the time to the demo's target accuracy: alpha 0 against others, with vLLM and DeepSpeed.

    Each run is a `rollog up` of the demo, evaluated every second step; a run takes one to three minutes. What counts
    is the trainer's time from its first step on, without the start of the engines.
    """
    from benchmarks.accuracy.measure import measure_accuracy
    from benchmarks.harness.own_kafka import own_kafka

    with own_kafka(options.home) as kafka:
        figures = measure_accuracy(
            alphas=alphas,
            seeds=range(options.seed, options.seed + num_seeds),
            target=target,
            kafka=kafka,
            on_progress=progress,
        )
    report(figures, options)


if __name__ == "__main__":
    run(accuracy)
