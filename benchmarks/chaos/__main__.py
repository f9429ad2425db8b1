"""`python -m benchmarks.chaos`: nothing is lost and nothing is done twice, whatever is killed."""

from __future__ import annotations

import os

import click

from benchmarks.harness.options import BenchOptions, bench_options, count_option, progress, report, run, write


@click.command("chaos")
@count_option("--kills", "num_kills", 50, "Deaths to bring about, over as many runs as that takes.")
@click.option(
    "--engine",
    type=click.Choice(["vllm", "transformers"]),
    default="vllm",
    show_default=True,
    help="Inference engine of the workers.",
)
@click.option(
    "--suspend",
    "suspended_seconds",
    type=click.FloatRange(min=0, min_open=True),
    help="Suspend everybody for so many seconds each, one after the other, in place of kills.",
)
@click.option(
    "--pauses",
    "num_pauses",
    type=click.IntRange(min=1),
    help="Mix so many suspensions, and deaths of `rollog up` itself, into short runs with short time-outs.",
)
@click.option(
    "--full-disk",
    type=click.Choice(["log", "store"]),
    help="Fill the disk of the log, or of weights, checkpoints and state, in place of kills.",
)
@click.option(
    "--doubles",
    "num_doubles",
    type=click.IntRange(min=1),
    help="Start a second trainer or dispatcher so often beside those at work, in place of kills.",
)
@click.option(
    "--play",
    type=click.Choice(["episodes", "agents"]),
    help="Kill while episodes of twenty turns are played with durable turns, environments too; or while sessions of an "
    "agent are, its process and the policy endpoint's too.",
)
@click.option(
    "--client",
    type=click.Choice(["auto", "confluent", "kafka-python"]),
    default="auto",
    show_default=True,
    help="Client library of every role and command (broker.client).",
)
@bench_options
def chaos(
    *,
    num_kills: int,
    num_pauses: int | None,
    engine: str,
    suspended_seconds: float | None,
    full_disk: str | None,
    num_doubles: int | None,
    play: str | None,
    client: str,
    options: BenchOptions,
) -> None:
    """Kill the parts of real runs at random moments and at every named window, and check what is left.

    --pauses mixes suspensions in, --suspend, --full-disk and --doubles do something else in place of kills.

    Dispatcher, worker, vLLM's process, trainer and broker get SIGKILL while the demo is trained; the run's own
    supervisor restarts them. Each closed run is audited, recounted from its raw records by code that shares nothing
    with the product, and trained again from version 0; exit status 1 with what they said when something is off.
    """
    os.environ["ROLLOG_BROKER__CLIENT"] = client  # for every command that is started
    if full_disk is not None:
        _fill_disk(full_disk, engine, options)
    elif num_doubles is not None:
        _double(num_doubles, engine, options)
    elif num_pauses is not None:
        _mix(num_kills, num_pauses, engine, options)
    elif play is not None:
        _play(play, num_kills, engine, options)
    elif suspended_seconds is not None:
        _suspend(suspended_seconds, engine, options)
    else:
        _kill(num_kills, engine, options)


def _kill(num_kills: int, engine: str, options: BenchOptions) -> None:
    from benchmarks.chaos.measure import measure_chaos

    figures = measure_chaos(
        num_kills=num_kills,
        seed=options.seed,
        engine=engine,
        cache=options.home / "cache",
        on_progress=progress,
    )
    report(figures, options)


def _suspend(suspended_seconds: float, engine: str, options: BenchOptions) -> None:
    from benchmarks.chaos.measure import measure_suspensions

    figures = measure_suspensions(
        suspended_seconds=suspended_seconds,
        seed=options.seed,
        engine=engine,
        cache=options.home / "cache",
        on_progress=progress,
    )
    report(figures, options)


def _mix(num_kills: int, num_pauses: int, engine: str, options: BenchOptions) -> None:
    from benchmarks.chaos.measure import demo_settings, targets_of
    from benchmarks.chaos.mixed import MixedTargets, Tally, details_of, measure_mixed, mixed_figures

    def keep(tally: Tally) -> None:
        write(mixed_figures(tally), options, details=details_of(tally))

    tally = measure_mixed(
        MixedTargets(
            targets=targets_of(engine),
            settings={**demo_settings, "rollout.engine": engine},
            cache=options.home / "cache",
        ),
        num_kills=num_kills,
        num_pauses=num_pauses,
        seed=options.seed,
        on_progress=progress,
        on_run=keep,
    )
    report(mixed_figures(tally), options, details=details_of(tally))


def _play(play: str, num_kills: int, engine: str, options: BenchOptions) -> None:
    from benchmarks.chaos.killed_episodes import kinds, measure_killed_episodes

    figures = measure_killed_episodes(
        kinds[play],
        num_kills=num_kills,
        seed=options.seed,
        engine=engine,
        cache=options.home / "cache",
        on_progress=progress,
    )
    report(figures, options)


def _double(num_doubles: int, engine: str, options: BenchOptions) -> None:
    from benchmarks.chaos.doubled_run import measure_doubles
    from benchmarks.chaos.measure import demo_settings

    figures = measure_doubles(
        num_doubles=num_doubles,
        settings={**demo_settings, "rollout.engine": engine},
        cache=options.home / "cache",
        on_progress=progress,
    )
    report(figures, options)


def _fill_disk(disk: str, engine: str, options: BenchOptions) -> None:
    from benchmarks.chaos.full_disk import measure_full_disk

    figures = measure_full_disk(disk, engine=engine, cache=options.home / "cache", on_progress=progress)
    report(figures, options)


if __name__ == "__main__":
    run(chaos)
