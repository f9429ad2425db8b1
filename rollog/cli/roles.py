"""`rollog dispatch`, `rollog rollout` and `rollog train`: one role of a run that exists, in this process."""

from __future__ import annotations

import os
import socket
from functools import partial
from typing import TYPE_CHECKING

import click

from rollog.cli.options import common_options, wait_option
from rollog.kernel.logs import configure_logging

if TYPE_CHECKING:
    from rollog.run.request import RunRequest

_metrics_port = click.option(
    "--metrics-port", type=click.IntRange(0, 65535), help="Serve metrics on this port (0: any free one)."
)


@click.command()
@_metrics_port
@wait_option
@common_options
def dispatch(options: RunRequest, metrics_port: int | None, wait_seconds: float) -> int:
    """Run the dispatcher: orders rollouts for the prompts of a run.

    The settings are those of the run's manifest, which `rollog up` or `rollog topics create` has written; of
    --config, the environment and --set only what belongs to this machine counts: [metrics], [rollout], addresses and
    paths.

    Consumes samples, steps and workers; produces tasks and control. Waits for workers with free slots. If it dies,
    the next one reads the log and goes on.
    """
    from rollog.kernel.broker.rights import Role  # noqa: PLC0415  # help needs no Kafka
    from rollog.run.role_process import dispatcher, run_role  # noqa: PLC0415

    return run_role(
        dispatcher,
        options,
        rights=Role.DISPATCHER,
        name="dispatcher",
        metrics_port=metrics_port,
        wait_seconds=wait_seconds,
    )


@click.command()
@click.option("--name", help="First part of the worker's identity; the host's name without it.")
@_metrics_port
@wait_option
@common_options
def rollout(options: RunRequest, name: str | None, metrics_port: int | None, wait_seconds: float) -> int:
    """Run one rollout worker: generates responses and rewards them.

    Start as many as there are devices, at any time; each finds its run's settings in the manifest. Of --config, the
    environment and --set what belongs to this machine counts: [metrics], [rollout], addresses and paths.

    Consumes tasks, weights and control; produces samples, evaluations and workers. Waits for weights, then for
    tasks. If it dies, its tasks are issued to others.
    """
    from rollog.kernel.broker.rights import Role  # noqa: PLC0415  # help needs no Kafka
    from rollog.run import role_process  # noqa: PLC0415

    return role_process.run_role(
        role_process.rollout,
        options,
        rights=Role.WORKER,
        name=name or socket.gethostname(),
        metrics_port=metrics_port,
        wait_seconds=wait_seconds,
    )


@click.command()
@click.option(
    "--amend",
    "amendments",
    multiple=True,
    metavar="SECTION.KEY=VALUE",
    help="Change a setting of the run from the next step on; it is recorded in the ledger.",
)
@_metrics_port
@wait_option
@common_options
def train(
    options: RunRequest, amendments: tuple[str, ...], metrics_port: int | None, wait_seconds: float
) -> int:
    """Run the trainer: learns from the samples and publishes weights.

    The settings are the manifest's with what the ledger says was changed since, but for what belongs to this machine:
    [metrics], addresses and paths.

    Consumes samples and control; produces steps (the ledger) and weights, in one transaction per step. Waits for
    complete groups. If it dies, the next one recovers from ledger and checkpoint.

    With trainer.num_ranks it starts the other ranks on this machine. Under a launcher such as torchrun every rank is a
    `rollog train`, of which the first one does all this and the others follow it.
    """
    followed = _followed_another_rank()
    if followed is not None:
        return followed
    from rollog.kernel.broker.rights import Role  # noqa: PLC0415  # help needs no Kafka
    from rollog.run.role_process import run_role, trainer  # noqa: PLC0415
    from rollog.settings.sources import assigned  # noqa: PLC0415

    role = partial(trainer, amendment=assigned(amendments, "--amend"))
    return run_role(
        role,
        options,
        rights=Role.TRAINER,
        name="trainer",
        metrics_port=metrics_port,
        wait_seconds=wait_seconds,
    )


def _followed_another_rank() -> int | None:
    """Where a launcher made this a rank other than the first: follow that one to the end. Returns the status then."""
    if os.environ.get("WORLD_SIZE", "1") == "1":
        return None
    from trainer.engines.multi_rank.follower import run_follower  # noqa: PLC0415  # help needs no torch
    from trainer.engines.multi_rank.ranks import launched_rank  # noqa: PLC0415

    configure_logging()
    place = launched_rank(os.environ)
    if place is None or place.rank == 0:
        return None
    return run_follower(place)
