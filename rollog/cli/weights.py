"""`rollog weights`: the versions of a run in its store: listed, read through, or let go."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from rollog.cli.options import recorded_run_options
from rollog.kernel.printable import printable

if TYPE_CHECKING:
    from rollog.run.request import RecordedRunRequest


@click.group()
def weights() -> None:
    """List, check or prune the versions of a run in its weights store."""


@weights.command(name="list")
@recorded_run_options
def list_versions(source: RecordedRunRequest) -> None:
    """List the versions of RUN: how each is stored, with how many bytes, and whether it is there, pruned or missing.

    Looks at notices, manifests, names and lengths of files; `rollog weights check` reads the files.

    Consumes steps, weights and the weights store; produces nothing.
    """
    from rollog.run.recorded_run import open_run  # noqa: PLC0415  # help needs no Kafka
    from rollog.run.stored_weights import list_weights, weights_table  # noqa: PLC0415

    with open_run(source) as run:
        click.echo("\n".join(weights_table(list_weights(run))))


@weights.command()
@recorded_run_options
def check(source: RecordedRunRequest) -> int:
    """Read the files of each version of RUN that was not pruned, and compare them with its digest.

    Exit status 1, and each version that is lost or damaged with what is wrong, where one is. Of patches, each version
    is rebuilt in the directory of temporary files (TMPDIR), which needs room for one.

    Consumes steps, weights and the weights store; produces nothing.
    """
    from rollog.run.recorded_run import open_run  # noqa: PLC0415  # help needs no Kafka
    from rollog.run.stored_weights import check_weights  # noqa: PLC0415

    num_checked = num_faults = 0
    with open_run(source) as run:
        for found in check_weights(run):
            num_checked += 1
            if found.fault is not None:
                num_faults += 1
                click.echo(printable(f"version {found.version}: {found.fault}"))
    click.echo(f"{num_checked} versions read, {num_faults} lost or damaged")
    return 1 if num_faults else 0


@weights.command()
@recorded_run_options
@click.option(
    "--keep-newest",
    type=click.IntRange(min=2),
    metavar="N",
    help="Newest versions that stay; left out, trainer.keep_newest_weights of the run.",
)
@click.option(
    "--keep-every",
    type=click.IntRange(min=0),
    metavar="K",
    help="Every K-th version stays, too; left out, trainer.keep_every_weights of the run.",
)
@click.option("--dry-run", is_flag=True, help="Only say what would be deleted.")
@click.option("--yes", is_flag=True, help="Do not ask.")
def prune(
    *,
    source: RecordedRunRequest,
    keep_newest: int | None,
    keep_every: int | None,
    dry_run: bool,
    yes: bool,
) -> None:
    """Let versions of RUN, which is stopped, go: name them on its log as pruned, then delete their files for good.

    A trainer with trainer.keep_newest_weights does so while it works. Version 0 stays, the newest, those of complete
    checkpoints and what these are stored as changes of: run this with the --home of the trainer, where its checkpoints
    are. Says what stays and goes, and asks first. Refused while a role works for the run; a trainer that comes back
    later is fenced.

    Consumes steps, weights and the weights store; produces WeightsPruned on weights, and a TrainerEpoch on control.
    """
    from rollog.kernel.broker.rights import Role  # noqa: PLC0415  # help needs no Kafka
    from rollog.run.recorded_run import open_run  # noqa: PLC0415
    from rollog.run.weights_pruning import WeightsPruning, prune_weights  # noqa: PLC0415

    source.refuse_copies()
    home = source.common.home
    with open_run(source, role=Role.READER if dry_run else Role.TRAINER) as run:
        planned = WeightsPruning.of(run, home, keep_newest=keep_newest, keep_every=keep_every)
        click.echo("\n".join([f"run {run.topics.run}:", *(f"  {line}" for line in planned.lines())]))
        if dry_run or not planned.has_work():
            return
        if not yes:
            click.confirm("Delete this for good?", abort=True)
        for line in prune_weights(run, home, keep_newest=keep_newest, keep_every=keep_every):
            click.echo(line)
