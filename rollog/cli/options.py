"""Options that several commands share, and the plain requests that they become."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import wraps
from pathlib import Path
from typing import Any

import click

from rollog.run.request import RecordedRunRequest, RunRequest

Command = Callable[..., Any]


def _directory(_context: click.Context, _parameter: click.Parameter, home: Path) -> Path:
    """A state directory, there or not. Raises UsageError for anything else."""
    if home.exists() and not home.is_dir():
        raise click.UsageError(f"--home {home} is a file; name a directory, or a place where one can be made")
    return home


def home_option(function: Command) -> Command:
    """Add `--home` alone."""
    return click.option(
        "--home",
        type=click.Path(path_type=Path),
        metavar="DIRECTORY",
        callback=_directory,
        envvar="ROLLOG_HOME",
        default=Path(".rollog"),
        show_default=True,
        help="State directory: broker data, weights, checkpoints, caches, logs (also ROLLOG_HOME).",
    )(function)


plain_option = click.option("--plain", is_flag=True, help="One line per step instead of the live picture.")

workers_option = click.option(
    "--workers",
    "num_workers",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Rollout worker processes to run here.",
)

preflight_option = click.option(
    "--preflight/--skip-preflight",
    default=True,
    show_default=True,
    help="Whether model, data, reward function and stores are looked at before anything is created.",
)

wait_option = click.option(
    "--wait",
    "wait_seconds",
    type=click.FloatRange(min=0),
    default=60.0,
    show_default=True,
    help="Seconds to wait for the run to be created.",
)


def common_options(function: Command) -> Command:
    """Add the shared options; the command receives them as its argument `options`."""

    @wraps(function)
    def command(
        config: Path | None,
        home: Path,
        assignments: tuple[str, ...],
        run: str | None,
        broker: str | None,
        **others: Any,
    ) -> Any:
        options = RunRequest(
            config=config, home=home.expanduser(), assignments=assignments, run=run, broker=broker
        )
        return function(options=options, **others)

    decorated: Command = command
    for decorate in reversed(_common_decorators()):
        decorated = decorate(decorated)
    return decorated


def one_run(argument: str | None, option: str | None) -> str | None:
    """The run that RUN or `--run` names. Raises UsageError where they name two."""
    if argument is not None and option not in {None, argument}:
        raise click.UsageError(f"RUN is {argument} and --run is {option}: name one run")
    return argument or option


def recorded_run(function: Command) -> Command:
    """Add the argument RUN, the run's name, below `common_options`; --run says the same."""

    @wraps(function)
    def command(options: RunRequest, run_name: str | None, **others: Any) -> Any:
        return function(options=replace(options, run=one_run(run_name, options.run)), **others)

    decorated: Command = click.argument("run_name", metavar="RUN", required=False)(command)
    return decorated


def recorded_run_options(function: Command) -> Command:
    """Add RUN (or `--run`), `--archive`, `--mirror`, `--offset-map`, `--broker`, `--home` and `--set`.

    The command receives them as `source`.
    """

    @wraps(function)
    def command(
        *,
        run_name: str | None,
        run: str | None,
        archive: Path | None,
        mirror: str | None,
        offset_map: Path | None,
        broker: str | None,
        home: Path,
        assignments: tuple[str, ...],
        **others: Any,
    ) -> Any:
        run = one_run(run_name, run)
        common = RunRequest(
            config=None, home=home.expanduser(), assignments=assignments, run=run, broker=broker
        )
        source = RecordedRunRequest(
            run=run, archive=archive, common=common, mirror=mirror, offset_map=offset_map
        )
        return function(source=source, **others)

    decorated: Command = home_option(command)
    for decorate in reversed(_recorded_decorators()):
        decorated = decorate(decorated)
    return decorated


def _common_decorators() -> list[Callable[[Command], Command]]:
    return [
        click.option(
            "--config",
            type=click.Path(dir_okay=False, path_type=Path),
            help="TOML file with the settings; without one, those of the demo are used.",
        ),
        home_option,
        click.option(
            "--set",
            "assignments",
            multiple=True,
            metavar="SECTION.KEY=VALUE",
            help="Override one setting; may be given several times.",
        ),
        click.option(
            "--run", metavar="NAME", help="Name of the run: a-z, 0-9 and -; a new run takes a new one."
        ),
        click.option(
            "--broker", metavar="HOST:PORT", help="Kafka to use; without it, the embedded one of --home."
        ),
    ]


def _recorded_decorators() -> list[Callable[[Command], Command]]:
    return [
        click.argument("run_name", metavar="[RUN]", required=False),
        click.option("--run", metavar="NAME", help="The same as RUN."),
        click.option(
            "--archive",
            type=click.Path(dir_okay=False, path_type=Path),
            metavar="FILE",
            help="Read an archive made by `rollog export` instead of a broker.",
        ),
        click.option(
            "--mirror",
            metavar="ALIAS",
            help="The broker has a mirror of RUN: what stands before a dot and the topics' names, or `same-names`.",
        ),
        click.option(
            "--offset-map",
            type=click.Path(dir_okay=False, path_type=Path),
            metavar="FILE",
            help="With --mirror: the original offsets, as `rollog export --offsets` wrote them; else the ledger tells.",
        ),
        click.option(
            "--broker", metavar="HOST:PORT", help="Kafka to use; without it, the embedded one of --home."
        ),
        click.option(
            "--set",
            "assignments",
            multiple=True,
            metavar="SECTION.KEY=VALUE",
            help="Override an address or path of the run; may be given several times.",
        ),
    ]
