"""`python -m benchmarks.learning`: what every algorithm learns under lag."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, get_args

import click

from benchmarks.harness.options import (
    BenchOptions,
    bench_options,
    names,
    numbers,
    progress,
    run,
    seeds_option,
    target_option,
    write,
    written_file_option,
)
from benchmarks.learning.cells import Part, real_algorithms
from benchmarks.learning.request import Request, both
from rollog.settings.training import AlgorithmType

if TYPE_CHECKING:
    from pathlib import Path

    from benchmarks.learning.cells import Runs


@click.command("learning")
@click.option(
    "--part",
    type=click.Choice([*(part.value for part in Part), both]),
    default=Part.INJECTED.value,
    show_default=True,
    help="Lag injected in this process, or the real loop with Kafka, vLLM and DeepSpeed.",
)
@click.option(
    "--algorithms",
    callback=names(lambda: get_args(AlgorithmType)),
    help=f"Values of algorithm.type; left out, all, in the real loop {','.join(real_algorithms)}.",
)
@click.option(
    "--lags",
    callback=numbers(int),
    default="0,2,8,4,1",
    show_default=True,
    help="Injected lags, in the order in which they are measured.",
)
@click.option(
    "--alphas",
    callback=numbers(float),
    default="0,2",
    show_default=True,
    help="Values of freshness.alpha in the real loop.",
)
@seeds_option
@click.option(
    "--steps", "num_steps", type=click.IntRange(min=1), help="Training steps; left out, the demo's."
)
@target_option
@written_file_option("--plot", "plot_path", "Write accuracy against lag here, as SVG.")
@bench_options
def learning(*, plot_path: Path | None, options: BenchOptions, **others: Any) -> None:
    """Measure what each algorithm learns from samples that are so many versions old, on the demo's task.

    A run of an injected lag takes 10 to 20 seconds on a free processor, one of the real loop about a minute. With
    --results the file is written after each run, and runs that stand in it already are not made again.
    """
    from benchmarks.learning.figures import figures_of
    from benchmarks.learning.known_runs import known_runs, results_details
    from benchmarks.learning.measure import complete_settings, measure_learning, what_is_learnt
    from benchmarks.learning.plot import plotted
    from benchmarks.learning.tables import tables_of

    request = Request(first_seed=options.seed, **others)
    settings = complete_settings(request, options.home)
    learnt = what_is_learnt(settings)

    def save(runs: Runs) -> None:
        details = results_details(runs, learnt)
        write(figures_of(runs, request.target), options, libraries=request.libraries, details=details)

    known = known_runs(options.results_path, learnt)
    runs = measure_learning(request, settings, known, home=options.home, on_progress=progress, on_runs=save)
    save(runs)
    click.echo("\n\n".join(tables_of(runs, request.target)))
    if plot_path is not None:
        plot_path.write_text(plotted(runs), encoding="utf-8")


if __name__ == "__main__":
    run(learning)
