"""Options that several commands share, and the settings they resolve to."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from rollog.settings.settings import Settings

Command = Callable[..., Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class CommonOptions:
    """What `--config`, `--home`, `--set`, `--run` and `--broker` say."""

    config: Path | None
    home: Path
    assignments: tuple[str, ...]
    run: str | None
    broker: str | None

    def settings(self, *, with_demo: bool = True) -> Settings:
        """Resolved settings: defaults, file, environment, `--set`, then the flags of their own."""
        from rollog.settings.sources import load_settings  # noqa: PLC0415  # help needs no pydantic

        return load_settings(
            self.config,
            environment=os.environ,
            assignments=(*self.assignments, *self.flag_assignments),
            with_demo=with_demo,
        )

    @property
    def flag_assignments(self) -> tuple[str, ...]:
        """`--run` and `--broker` as assignments to their keys."""
        from rollog.run.names import checked_name  # noqa: PLC0415

        named = () if self.run is None else (f"run.name={checked_name(self.run)}",)
        placed = () if self.broker is None else (f"broker.bootstrap_servers={self.broker}",)
        return (*named, *placed)


def home_option(function: Command) -> Command:
    """Add `--home` alone."""
    return click.option(
        "--home",
        type=click.Path(file_okay=False, path_type=Path),
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
        options = CommonOptions(
            config=config, home=home.expanduser(), assignments=assignments, run=run, broker=broker
        )
        return function(options=options, **others)

    decorated: Command = command
    for decorate in reversed(_decorators()):
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
    def command(options: CommonOptions, run_name: str | None, **others: Any) -> Any:
        return function(options=replace(options, run=one_run(run_name, options.run)), **others)

    decorated: Command = click.argument("run_name", metavar="RUN", required=False)(command)
    return decorated


def _decorators() -> list[Callable[[Command], Command]]:
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
