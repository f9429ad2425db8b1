"""`rollog bench`: the published benchmarks."""

from __future__ import annotations

import click

from benchmarks.harness.commands_engines import accelerator, training
from benchmarks.harness.commands_learning import learning
from benchmarks.harness.options import (
    BenchOptions,
    bench_options,
    numbers,
    own_broker,
    report,
    seeds_option,
    target_option,
)
from benchmarks.scheduling.items import Item, measured_by_default, summaries


@click.group()
def bench() -> None:
    """Measure, and say how far each figure is from its target and from the ideal.

    Every command takes --seed and --json FILE: a list of objects with name, value, unit, target, ideal and
    higher_is_better.
    """


def _items(context: click.Context, parameter: click.Parameter, value: str) -> tuple[Item, ...]:
    del context, parameter
    known = {str(item.value): item for item in Item}
    words = [word.strip() for word in value.split(",")]
    unknown = [word for word in words if word not in known]
    if unknown:
        raise click.BadParameter(f"{', '.join(unknown)} is not known; give some of {','.join(known)}")
    return tuple(sorted({known[word] for word in words}))


@bench.command()
@click.option(
    "--items",
    callback=_items,
    default=",".join(str(item.value) for item in measured_by_default),
    show_default=True,
    help=f"{'; '.join(f'{item.value}: {summary}' for item, summary in summaries.items())}.",
)
@click.option(
    "--draws",
    "num_draws",
    type=click.IntRange(min=1),
    default=20,
    show_default=True,
    help="Draws of short runs; of longer ones a part, as docs/benchmarks.md says, and at least one.",
)
@click.option(
    "--speed",
    type=click.FloatRange(min=0, min_open=True),
    default=10.0,
    show_default=True,
    help="Engine seconds in a real second: the higher, the more the overheads weigh.",
)
@click.option(
    "--lanes",
    "num_lanes",
    type=click.IntRange(min=1),
    default=4,
    show_default=True,
    help="Runs beside each other, each in a process of its own.",
)
@bench_options
def scheduling(
    *,
    items: tuple[Item, ...],
    num_draws: int,
    speed: float,
    num_lanes: int,
    options: BenchOptions,
) -> int:
    """Measure scheduling: the time to a full batch, of a training step, and what the dispatcher takes.

    Real runs on an embedded Apache Kafka of its own: dispatcher, rollout workers and trainer, with a simulated engine
    whose time is scaled. Durations and verdicts are a hash of (seed, draw, group, replica), the same for every mode
    and for the ideal that each ratio stands beside. Exit status 1 if runs failed; their draws are left out.
    """
    from benchmarks.scheduling.scheduling import measure_scheduling  # noqa: PLC0415  # help needs none of it

    with own_broker(options.home) as (directory, address):
        figures, num_failed = measure_scheduling(
            items=items,
            num_draws=num_draws,
            seed=options.seed,
            speed=speed,
            num_lanes=num_lanes,
            address=address,
            home=directory / "runs",
            on_progress=lambda line: click.echo(line, err=True),
        )
    chosen = ",".join(map(str, items))
    command = (
        f"rollog bench scheduling --items {chosen} --draws {num_draws} --speed {speed:g} --lanes {num_lanes} "
        f"--seed {options.seed}"
    )
    report(figures, command, options)
    return 1 if num_failed else 0


def _alphas(context: click.Context, parameter: click.Parameter, value: str) -> tuple[float, ...]:
    alphas = tuple(sorted(numbers(float)(context, parameter, value)))
    if alphas[0] != 0 or len(alphas) == 1:
        raise click.BadParameter(
            f"{value!r}: give 0, which the others are compared with, and at least one more"
        )
    return alphas


@bench.command()
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
def accuracy(
    *,
    alphas: tuple[float, ...],
    num_seeds: int,
    target: float,
    options: BenchOptions,
) -> int:
    """Measure the time to the demo's target accuracy: alpha 0 against others, with vLLM and DeepSpeed.

    Each run is a `rollog up` of the demo, evaluated every second step; a run takes one to three minutes. What counts
    is the trainer's time from its first step on, without the start of the engines.
    """
    from benchmarks.accuracy.accuracy import measure_accuracy  # noqa: PLC0415  # help needs none of it
    from rollog.kernel.broker.kafka import KafkaBroker  # noqa: PLC0415

    with own_broker(options.home) as (directory, address):
        figures = measure_accuracy(
            alphas=alphas,
            seeds=range(options.seed, options.seed + num_seeds),
            target=target,
            broker=KafkaBroker(address),
            address=address,
            home=directory / "home",
            on_progress=lambda line: click.echo(line, err=True),
        )
    chosen = ",".join(f"{alpha:g}" for alpha in alphas)
    command = f"rollog bench accuracy --alphas {chosen} --seeds {num_seeds} --target {target:g} --seed {options.seed}"
    report(figures, command, options)
    return 0


@bench.command()
@click.option(
    "--kills",
    "num_kills",
    type=click.IntRange(min=1),
    default=50,
    show_default=True,
    help="Deaths to bring about, over as many runs as that takes.",
)
@click.option(
    "--engine",
    type=click.Choice(["vllm", "transformers"]),
    default="vllm",
    show_default=True,
    help="Inference engine of the workers.",
)
@bench_options
def chaos(*, num_kills: int, engine: str, options: BenchOptions) -> int:
    """Kill the parts of real runs at random moments and at every named window, and check what is left.

    Dispatcher, worker, vLLM's process, trainer and broker get SIGKILL while the demo is trained; the run's own
    supervisor restarts them. Each closed run is audited and trained again from version 0; exit status 1 with what
    they said when something is off.
    """
    from benchmarks.chaos.chaos import measure_chaos  # noqa: PLC0415  # help needs none of it

    figures = measure_chaos(
        num_kills=num_kills,
        seed=options.seed,
        engine=engine,
        cache=options.home / "cache",
        on_progress=lambda line: click.echo(line, err=True),
    )
    command = f"rollog bench chaos --kills {num_kills} --engine {engine} --seed {options.seed}"
    report(figures, command, options)
    return 0


@bench.command()
@click.option(
    "--rounds",
    "num_rounds",
    type=click.IntRange(min=1),
    default=5,
    show_default=True,
    help="How often each of the two is timed, in turns.",
)
@bench_options
def recovery(*, num_rounds: int, options: BenchOptions) -> int:
    """Time the recovery of a killed trainer against loading its checkpoint and training the missing steps again."""
    from benchmarks.recovery.recovery import measure_recovery  # noqa: PLC0415  # help needs none of it
    from rollog.kernel.broker.kafka import KafkaBroker  # noqa: PLC0415

    with own_broker(options.home) as (directory, address):
        figures = measure_recovery(
            num_rounds=num_rounds,
            seed=options.seed,
            broker=KafkaBroker(address),
            address=address,
            home=directory / "home",
            on_progress=lambda line: click.echo(line, err=True),
        )
    command = f"rollog bench recovery --rounds {num_rounds} --seed {options.seed}"
    report(figures, command, options)
    return 0


bench.add_command(accelerator)
bench.add_command(learning)
bench.add_command(training)
