"""What every benchmark's command has: its options, a Kafka of its own, and a report of its figures."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rollog.cli.options import home_option

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from benchmarks.harness.figures import Figure

Command = Callable[..., Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchOptions:
    """What every benchmark is told: where caches lie, the seed of its draws, and where its figures go."""

    home: Path
    seed: int
    json_path: Path | None
    results_path: Path | None


def bench_options(function: Command) -> Command:
    """Add the options that every benchmark has; the command receives them as `options`."""

    @wraps(function)
    def command(
        home: Path, seed: int, json_path: Path | None, results_path: Path | None, **others: Any
    ) -> Any:
        options = BenchOptions(
            home=home.expanduser(), seed=seed, json_path=json_path, results_path=results_path
        )
        return function(options=options, **others)

    decorated: Command = click.option(
        "--json", "json_path", type=click.Path(dir_okay=False, path_type=Path), help="Write the figures here."
    )(command)
    decorated = click.option(
        "--results",
        "results_path",
        type=click.Path(dir_okay=False, path_type=Path),
        help="Write date, machine, versions, command and figures here.",
    )(decorated)
    decorated = click.option(
        "--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Seed of every draw."
    )(decorated)
    return home_option(decorated)


seeds_option = click.option(
    "--seeds",
    "num_seeds",
    type=click.IntRange(min=1),
    default=3,
    show_default=True,
    help="Runs of each variant, with seeds from --seed on.",
)
target_option = click.option(
    "--target",
    type=click.FloatRange(min=0, max=1, min_open=True),
    default=0.92,
    show_default=True,
    help="Held-out accuracy (greedy); what counts is when it is reached first.",
)


def numbers(kind: type[float]) -> Callable[[click.Context, click.Parameter, str], tuple[Any, ...]]:
    """A callback for an option that takes a list of lags or alphas such as 0,2,8; each counts once."""

    def parsed(context: click.Context, parameter: click.Parameter, value: str) -> tuple[Any, ...]:
        del context, parameter
        try:
            found = tuple(dict.fromkeys(kind(word) for word in value.split(",")))
        except ValueError:
            raise click.BadParameter(f"{value!r} is not a list of numbers such as 0,2,8") from None
        if min(found) < 0:
            raise click.BadParameter(f"{value!r} has a negative number; a lag is 0 or more")
        return found

    return parsed


@contextmanager
def own_broker(home: Path) -> Iterator[tuple[Path, str]]:
    """A directory that is removed afterwards, and the address of an embedded Kafka with its data there."""
    from rollog.kernel.broker.embedded import EmbeddedKafka  # noqa: PLC0415  # help needs none of it
    from rollog.run.connection import cache_directory  # noqa: PLC0415

    with (
        tempfile.TemporaryDirectory(prefix="rollog-bench-") as directory,
        EmbeddedKafka(Path(directory) / "kafka", cache_directory(home)) as kafka,
    ):
        yield Path(directory), kafka.address


def report(
    figures: Sequence[Figure],
    command: str,
    options: BenchOptions,
    *,
    libraries: Sequence[str] = (),
    details: Mapping[str, object] | None = None,
) -> None:
    """Print the figures, and write them to where the options say; the last two are for `write_results`."""
    for figure in figures:
        click.echo(figure.line())
    write(figures, command, options, libraries=libraries, details=details)


def write(
    figures: Sequence[Figure],
    command: str,
    options: BenchOptions,
    *,
    libraries: Sequence[str] = (),
    details: Mapping[str, object] | None = None,
) -> None:
    """Write the figures to where the options say."""
    from benchmarks.harness.figures import write_figures, write_results  # noqa: PLC0415  # help needs none of it
    from rollog.kernel.broker.embedded_jars import kafka_version  # noqa: PLC0415

    if options.json_path is not None:
        write_figures(figures, options.json_path)
    if options.results_path is not None:
        write_results(
            figures,
            options.results_path,
            command=command,
            kafka_version=kafka_version,
            libraries=libraries,
            details=details,
        )
