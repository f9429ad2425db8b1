"""`rollog bench learning`: every algorithm under lag."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import click

from benchmarks.harness.options import (
    BenchOptions,
    bench_options,
    numbers,
    own_broker,
    seeds_option,
    target_option,
    write,
)
from benchmarks.learning.learning import Part, injected_cells, real_algorithms, real_cells

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from benchmarks.learning.learning import Cell, Measured, Runs
    from rollog.settings.settings import Settings

_both = "both"


def _algorithms() -> tuple[str, ...]:
    from rollog.settings.training import AlgorithmType  # noqa: PLC0415  # help needs none of it

    return get_args(AlgorithmType)


def _names(context: click.Context, parameter: click.Parameter, value: str | None) -> tuple[str, ...] | None:
    del context, parameter
    if value is None:
        return None
    names, known = tuple(dict.fromkeys(word.strip() for word in value.split(","))), _algorithms()
    unknown = [name for name in names if name not in known]
    if unknown:
        raise click.BadParameter(f"{', '.join(unknown)} is not known; give some of {','.join(known)}")
    return names


@click.command()
@click.option(
    "--part",
    type=click.Choice([*(part.value for part in Part), _both]),
    default=Part.INJECTED.value,
    show_default=True,
    help="Lag injected in this process, or the real loop with Kafka, vLLM and DeepSpeed.",
)
@click.option(
    "--algorithms",
    callback=_names,
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
@click.option(
    "--plot",
    "plot_path",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write accuracy against lag here, as SVG.",
)
@bench_options
def learning(
    *,
    plot_path: Path | None,
    options: BenchOptions,
    **others: Any,
) -> int:
    """Measure what each algorithm learns from samples that are so many versions old, on the demo's task.

    A run of an injected lag takes 10 to 20 seconds on a free processor, one of the real loop about a minute. With
    --results the file is written after each run, and runs that stand in it already are not made again.
    """
    from benchmarks.learning.learning import measure, tables_of  # noqa: PLC0415  # help needs none of it
    from benchmarks.learning.results import known_runs  # noqa: PLC0415
    from rollog.run.creation import complete  # noqa: PLC0415
    from rollog.settings.sources import load_settings  # noqa: PLC0415

    wanted = _Wanted(**others)
    assignments = [f"{name}={value}" for name, value in wanted.assignments.items()]
    settings = complete(load_settings(assignments=assignments), options.home, _no_progress)
    learnt = what_is_learnt(settings)
    command = wanted.command(options.seed)

    def on_measured(cell: Cell, runs: Runs) -> None:
        found = runs[cell]
        click.echo(
            f"{cell.variant.name}, seed {cell.seed}: greedy {found.final_accuracy:.3f}, "
            f"sampled {found.sampled_accuracy:.3f} in {found.seconds:.0f} s",
            err=True,
        )
        _write(runs, wanted.target, command, options, learnt)

    known = known_runs(options.results_path, learnt)
    missing = [cell for cell in wanted.cells(options.seed) if cell not in known]
    with ExitStack() as stack:
        parts = {cell.variant.part for cell in missing}
        makers = _makers(settings, wanted.assignments, options, stack, parts)
        runs = measure(missing, known, makers, on_measured)
    _write(runs, wanted.target, command, options, learnt)
    click.echo("\n\n".join(tables_of(runs, wanted.target)))
    if plot_path is not None:
        _plot(runs, plot_path)
    return 0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Wanted:
    """What the options ask for; without algorithms those of each part, without steps the demo's."""

    part: str
    algorithms: tuple[str, ...] | None
    lags: tuple[int, ...]
    alphas: tuple[float, ...]
    num_seeds: int
    num_steps: int | None
    target: float

    @property
    def parts(self) -> frozenset[Part]:
        return frozenset(each for each in Part if self.part in {each, _both})

    @property
    def assignments(self) -> dict[str, object]:
        """What all runs have other than the demo, by dotted key."""
        from benchmarks.harness.demo_run import as_published  # noqa: PLC0415  # help needs none of it

        return as_published if self.num_steps is None else {**as_published, "run.num_steps": self.num_steps}

    def cells(self, first_seed: int) -> list[Cell]:
        seeds = range(first_seed, first_seed + self.num_seeds)
        cells: list[Cell] = []
        if Part.INJECTED in self.parts:
            cells += injected_cells(self.algorithms or _algorithms(), self.lags, seeds)
        if Part.REAL in self.parts:
            cells += real_cells(self.algorithms or real_algorithms, self.alphas, seeds)
        return cells

    def command(self, first_seed: int) -> str:
        """The command line that asks for the same."""
        words = [f"rollog bench learning --part {self.part}"]
        if self.algorithms is not None:
            words.append(f"--algorithms {','.join(self.algorithms)}")
        if Part.INJECTED in self.parts:
            words.append(f"--lags {','.join(map(str, self.lags))}")
        if Part.REAL in self.parts:
            words.append(f"--alphas {','.join(f'{alpha:g}' for alpha in self.alphas)}")
        if self.num_steps is not None:
            words.append(f"--steps {self.num_steps}")
        words.append(f"--seeds {self.num_seeds} --target {self.target:g} --seed {first_seed}")
        return " ".join(words)


def _makers(
    settings: Settings,
    assignments: Mapping[str, object],
    options: BenchOptions,
    stack: ExitStack,
    needed: set[Part],
) -> Mapping[Part, Callable[[Cell], Measured]]:
    """What makes the runs of each part; a Kafka is started where the real loop is needed."""
    from benchmarks.learning.injected_lag import LearningSettings  # noqa: PLC0415  # help needs none of it
    from benchmarks.learning.runs import InjectedRuns, RealRuns  # noqa: PLC0415
    from rollog.kernel.broker.kafka import KafkaBroker  # noqa: PLC0415

    makers: dict[Part, Callable[[Cell], Measured]] = {}
    if Part.INJECTED in needed:
        learnt = LearningSettings(
            num_steps=settings.run.num_steps,
            model=settings.model,
            data=settings.data,
            reward=settings.reward,
            groups=settings.groups,
            sampling=settings.sampling,
            evaluation=settings.evaluation,
            optimizer=settings.optimizer,
            trainer=settings.trainer,
        )
        makers[Part.INJECTED] = InjectedRuns(learnt, settings.algorithm).measure
    if Part.REAL in needed:
        directory, address = stack.enter_context(own_broker(options.home))
        shared = {
            **assignments,
            "model.path": settings.model.path,
            "data.train": settings.data.train,
            "data.held_out": settings.data.held_out,
            "reward.function": settings.reward.function,
        }
        makers[Part.REAL] = RealRuns(KafkaBroker(address), address, directory / "home", shared).measure
    return makers


def what_is_learnt(settings: Settings) -> dict[str, object]:
    """The settings that runs must share to stand in one file; files and the algorithm's type are not among them."""
    return {
        "run.num_steps": settings.run.num_steps,
        **{
            f"{name}.{key}": value
            for name in ("groups", "sampling", "optimizer")
            for key, value in getattr(settings, name).model_dump(mode="json").items()
        },
        "evaluation.num_prompts": settings.evaluation.num_prompts,
        "trainer.num_minibatches": settings.trainer.num_minibatches,
    }


def _write(
    runs: Runs, target: float, command: str, options: BenchOptions, learnt: Mapping[str, object]
) -> None:
    from benchmarks.learning.learning import figures_of  # noqa: PLC0415  # help needs none of it
    from benchmarks.learning.results import results_details  # noqa: PLC0415

    libraries = ["torch", "transformers"]
    if any(cell.variant.part is Part.REAL for cell in runs):
        libraries += ["deepspeed", "vllm"]
    details = results_details(runs, learnt)
    write(figures_of(runs, target), command, options, libraries=libraries, details=details)


def _plot(runs: Runs, path: Path) -> None:
    from benchmarks.learning.plot import panels_of, svg_of  # noqa: PLC0415  # help needs none of it

    title = "Held-out accuracy after the last step, with 95 % intervals over seeds"
    path.write_text(svg_of(panels_of(runs), title), encoding="utf-8")


def _no_progress(what: str, fraction: float) -> None:
    del what, fraction
