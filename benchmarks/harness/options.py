"""What every experiment's command has: its options, its errors, and a report of its figures."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

import click

from rollog.cli.options import home_option
from rollog.kernel.errors import RollogError, exit_status
from rollog.kernel.signals import exit_on_sigterm

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from benchmarks.harness.figures import Figure

Command = Callable[..., Any]
_places = ("home", "json_path", "results_path", "plot_path", "keep")
"""Options that say where files lie: they change no figure."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchOptions:
    """What every experiment is told. `command` is the command line that asks for the same, with all defaults."""

    home: Path
    seed: int
    json_path: Path | None
    results_path: Path | None
    command: str
    started: float


class MeasureRuns(Protocol):
    """Measures an example over several seeds, and its control over others."""

    def __call__(
        self,
        *,
        seeds: Iterable[int],
        control_seeds: Iterable[int],
        home: Path,
        on_progress: Callable[[str], None],
    ) -> tuple[list[Figure], dict[str, object]]:
        """All figures, and further entries of a results file."""
        ...


def run(command: click.Command) -> NoReturn:
    """Run the command of an experiment and exit: 0, 1 (failed), 2 (usage, settings, data) or 128 + signal."""
    exit_on_sigterm()
    try:
        command.main(prog_name=_program(command))
    except RollogError as error:
        click.secho(f"error: {error}", fg="red", err=True)
        sys.exit(exit_status(error))
    raise AssertionError("click exits by itself")


def bench_options(function: Command) -> Command:
    """Add the options that every experiment has; the command receives them as `options`."""

    @wraps(function)
    def command(
        home: Path, seed: int, json_path: Path | None, results_path: Path | None, **others: Any
    ) -> Any:
        options = BenchOptions(
            home=home.expanduser(),
            seed=seed,
            json_path=json_path,
            results_path=results_path,
            command=_command_line(click.get_current_context()),
            started=time.monotonic(),
        )
        return function(options=options, **others)

    decorated = written_file_option("--json", "json_path", "Write the figures here.")(command)
    text = "Write date, machine, versions, command and figures here."
    decorated = written_file_option("--results", "results_path", text)(decorated)
    decorated = click.option(
        "--seed",
        type=click.IntRange(min=0),
        default=0,
        show_default=True,
        help="Where everything random begins.",
    )(decorated)
    return home_option(decorated)


def count_option(flag: str, name: str, default: int, text: str, *, least: int = 1) -> Command:
    """An option that takes a number of something; the command receives it as `name`."""
    return click.option(
        flag, name, type=click.IntRange(min=least), default=default, show_default=True, help=text
    )


def run_and_control_options(what: str, unit: str) -> Command:
    """`--seeds` for runs of `what`, and `--control-seeds` for runs in which each `unit` has another one's reward."""
    runs = count_option("--seeds", "num_seeds", 3, f"Runs of {what}, with seeds from --seed on.")
    controls = count_option(
        "--control-seeds",
        "num_controls",
        1,
        f"Runs of the control, in which each training {unit} has the reward of another.",
        least=0,
    )
    return lambda function: runs(controls(function))


def report_runs_and_controls(
    measure: MeasureRuns, options: BenchOptions, *, num_seeds: int, num_controls: int
) -> None:
    """Make the runs and controls that `run_and_control_options` ask for, and report what `measure` found."""
    figures, details = measure(
        seeds=range(options.seed, options.seed + num_seeds),
        control_seeds=range(options.seed, options.seed + num_controls),
        home=options.home,
        on_progress=progress,
    )
    report(figures, options, libraries=("torch", "transformers", "deepspeed", "vllm"), details=details)


def parts_option(questions: Mapping[str, str], default: str) -> Command:
    """`--only`: parts of an experiment by name, each with its question; the command receives the names as `only`."""
    return click.option(
        "--only",
        callback=names(lambda: tuple(questions)),
        default=default,
        show_default=True,
        help=f"{'; '.join(f'{name}: {question}' for name, question in questions.items())}.",
    )


def draws_option(flag: str, name: str, what: str, published: Mapping[str, int]) -> Command:
    """How many draws of each part there are; left out, as many as each part is `published` with."""
    return click.option(
        flag,
        name,
        type=click.IntRange(min=1),
        help=f"{what} of each part, numbers 0 to N - 1 of --seed; left out, as many as each is published with: "
        f"{', '.join(f'{part} {number}' for part, number in published.items())}.",
    )


def written_file_option(flag: str, name: str, text: str) -> Command:
    """An option that names a file to write; the command receives its path as `name`."""
    kind = click.Path(dir_okay=False, path_type=Path)
    return click.option(flag, name, type=kind, callback=_with_directory, help=text)


def _with_directory(context: click.Context, parameter: click.Parameter, value: Path | None) -> Path | None:
    """A file to write: its directory is made now, so that no figure is lost at the end."""
    del context, parameter
    if value is not None:
        try:
            value.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise click.BadParameter(f"{value}: no directory can be made for it: {error.strerror}") from None
    return value


seeds_option = count_option("--seeds", "num_seeds", 3, "Runs of each variant, with seeds from --seed on.")
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


def names(known: Callable[[], Sequence[str]]) -> Callable[[click.Context, click.Parameter, Any], Any]:
    """A callback for an option that takes a list of known names; each counts once, none at all is None."""

    def parsed(context: click.Context, parameter: click.Parameter, value: str | None) -> Any:
        del context, parameter
        if value is None:
            return None
        found = tuple(dict.fromkeys(word.strip() for word in value.split(",")))
        unknown = [name for name in found if name not in known()]
        if unknown:
            raise click.BadParameter(f"{', '.join(unknown)} is not known; give some of {','.join(known())}")
        return found

    return parsed


def progress(line: str) -> None:
    """Print a line of progress, apart from the figures."""
    click.echo(line, err=True)


def report(
    figures: Sequence[Figure],
    options: BenchOptions,
    *,
    libraries: Sequence[str] = (),
    details: Mapping[str, object] | None = None,
    num_failed: int = 0,
) -> None:
    """Print the figures, and write them to where the options say; exit with 1 where runs failed.

    `libraries` and `details` are for `write_results`.
    """
    for figure in figures:
        click.echo(figure.line())
    write(figures, options, libraries=libraries, details=details)
    if num_failed:
        click.get_current_context().exit(1)


def write(
    figures: Sequence[Figure],
    options: BenchOptions,
    *,
    libraries: Sequence[str] = (),
    details: Mapping[str, object] | None = None,
) -> None:
    """Write the figures to where the options say."""
    from benchmarks.harness.figures import write_figures, write_results  # noqa: PLC0415  # help needs none of it

    if options.json_path is not None:
        write_figures(figures, options.json_path)
    if options.results_path is not None:
        write_results(
            figures,
            options.results_path,
            command=options.command,
            seconds=time.monotonic() - options.started,
            libraries=libraries,
            details=details,
        )


def _program(command: click.Command) -> str:
    return f"python -m benchmarks.{command.name}"


def _command_line(context: click.Context) -> str:
    """The command of a context with the values of all options but those that say where files lie."""
    words = [_program(context.command)]
    for parameter in context.command.params:
        if parameter.name not in _places:
            words += _option_words(parameter, context.params.get(parameter.name or ""))
    return " ".join(words)


def _option_words(parameter: click.Parameter, value: Any) -> list[str]:
    if value is None:
        return []
    values = value if parameter.multiple else [value]
    return [word for each in values for word in (parameter.opts[0], shlex.quote(_text(each)))]


def _text(value: Any) -> str:
    match value:
        case tuple():
            return ",".join(map(_text, value))
        case Enum():
            return str(value.value)
        case float():
            return f"{value:g}"
        case _:
            return str(value)
