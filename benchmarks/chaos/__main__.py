"""`python -m benchmarks.chaos`: nothing is lost and nothing is done twice, whatever is killed."""

from __future__ import annotations

import click

from benchmarks.harness.options import BenchOptions, bench_options, count_option, progress, report, run


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
@bench_options
def chaos(*, num_kills: int, engine: str, suspended_seconds: float | None, options: BenchOptions) -> None:
    """Kill the parts of real runs at random moments and at every named window, and check what is left.

    Dispatcher, worker, vLLM's process, trainer and broker get SIGKILL while the demo is trained; the run's own
    supervisor restarts them. Each closed run is audited and trained again from version 0; exit status 1 with what
    they said when something is off.
    """
    from benchmarks.chaos.measure import measure_chaos, measure_suspensions

    if suspended_seconds is not None:
        figures = measure_suspensions(
            suspended_seconds=suspended_seconds,
            seed=options.seed,
            engine=engine,
            cache=options.home / "cache",
            on_progress=progress,
        )
        report(figures, options)
        return
    figures = measure_chaos(
        num_kills=num_kills,
        seed=options.seed,
        engine=engine,
        cache=options.home / "cache",
        on_progress=progress,
    )
    report(figures, options)


if __name__ == "__main__":
    run(chaos)
