"""`rollog runs`: the runs of a broker, and deleting one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from rollog.cli.options import common_options, recorded_run_options

if TYPE_CHECKING:
    from rollog.run.request import RecordedRunRequest, RunRequest


@click.group(invoke_without_command=True)
@common_options
@click.pass_context
def runs(context: click.Context, options: RunRequest) -> None:
    """List the runs of a broker: state, steps, held-out reward, size on this disk, and where their weights are.

    Starts the embedded broker of --home for that time if it does not run. `rollog runs delete RUN` deletes one.

    Consumes the register, and steps, evaluations and workers of each run; produces nothing.
    """
    if context.invoked_subcommand is not None:
        _refuse_misplaced_options(context)
        return
    from rollog.run.connection import connect, embedded_unless_named  # noqa: PLC0415  # help needs no Kafka
    from rollog.run.framing import broker_of_any_run  # noqa: PLC0415
    from rollog.run.run_list import list_runs, run_table  # noqa: PLC0415

    here = options.local_layers().settings()
    with embedded_unless_named(here.broker, options.home, has_runs=True):
        broker = broker_of_any_run(connect(here.broker, options.home))
        found = list(list_runs(broker, here.run.prefix, options.home))
        if not found:
            click.echo(f"no run is registered in {here.run.prefix}.runs at {broker.address}")
            return
        click.echo("\n".join(run_table(found)))


@runs.command()
@recorded_run_options
@click.option("--yes", is_flag=True, help="Do not ask.")
def delete(source: RecordedRunRequest, yes: bool) -> None:
    """Delete RUN for good: its topics, weights, checkpoints and logs on this machine, and its entry in the register.

    With a schema registry, which --set registry.url=URL or the environment names, its subjects go, too. Where the
    registry does not let them go, the rest is deleted and the last lines say what stays and how to delete it.

    Says what belongs to the run and asks first. Refused while a role works for it. An archive (`rollog export RUN
    FILE`) keeps all that is needed to audit and replay it.

    What it keeps on other machines (checkpoints of a trainer there, logs) is theirs.
    """
    from rollog.kernel.broker.rights import Role  # noqa: PLC0415  # help needs no Kafka
    from rollog.run.deletion import Deletion  # noqa: PLC0415
    from rollog.run.recorded_run import open_run  # noqa: PLC0415

    source.refuse_copies()
    with open_run(source, role=Role.ADMINISTRATOR) as run:
        deletion = Deletion.of(run.broker, run.topics, run.settings, source.common.home)
        click.echo("\n".join([f"run {run.topics.run}:", *(f"  {line}" for line in deletion.lines())]))
        if not yes:
            click.confirm("Delete all this for good?", abort=True)
        click.echo(f"looking for {deletion.quiet_seconds:g} s whether a role works for it")
        for line in deletion.run():
            click.echo(line)


def _refuse_misplaced_options(context: click.Context) -> None:
    """Raise UsageError for options before the name of a subcommand, which has its own: it would not heed them."""
    given = [
        option.opts[0]
        for option in context.command.params
        if option.name and context.get_parameter_source(option.name) is ParameterSource.COMMANDLINE
    ]
    if given:
        name = context.invoked_subcommand
        raise click.UsageError(
            f"{', '.join(given)} before {name}: options of {name} stand behind it, as in `rollog runs {name} RUN "
            f"{given[0]} ...`",
            context,
        )
