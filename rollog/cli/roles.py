"""`rollog dispatch`, `rollog rollout` and `rollog train`: one role of a run that exists, in this process."""

from __future__ import annotations

import os
import socket
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import click

from rollog.cli.options import common_options, wait_option
from rollog.kernel.logs import configure_logging, get_logger

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from threading import Event

    from rollog.kernel.broker.ports import Broker
    from rollog.kernel.metrics import Metrics
    from rollog.run.request import RunRequest
    from rollog.settings.settings import Settings
    from schemas import RunManifest

log = get_logger("role")


@dataclass(frozen=True, slots=True)
class Part:
    """What a role's settings are made of."""

    settings: Settings
    manifest: RunManifest
    home: Path
    name: str


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
    return _run("dispatcher", _dispatcher, options, metrics_port, wait_seconds)


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
    return _run(name or socket.gethostname(), _rollout, options, metrics_port, wait_seconds)


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
    from rollog.settings.sources import assigned  # noqa: PLC0415

    if _follows_another_rank():
        return 0
    run_role = partial(_trainer, amendment=assigned(amendments, "--amend"))
    return _run("trainer", run_role, options, metrics_port, wait_seconds)


def _follows_another_rank() -> bool:
    """Where a launcher made this a rank other than the first: follow that one to the end."""
    if os.environ.get("WORLD_SIZE", "1") == "1":
        return False
    from trainer.engines.multi_rank.follower import run_follower  # noqa: PLC0415  # help needs no torch
    from trainer.engines.multi_rank.ranks import launched_rank  # noqa: PLC0415

    configure_logging()
    place = launched_rank(os.environ)
    if place is None or place.rank == 0:
        return False
    run_follower(place)
    return True


def _run(
    name: str,
    run_role: Callable[[Part, Broker, Metrics, Event], None],
    options: RunRequest,
    metrics_port: int | None,
    wait_seconds: float,
) -> int:
    """Run one role to the end of its run. Returns 0 then, and 128 + signal after a graceful stop."""
    from rollog.kernel.metrics import Metrics  # noqa: PLC0415
    from rollog.kernel.signals import StopSignals  # noqa: PLC0415
    from rollog.run.joining import join_run  # noqa: PLC0415  # help needs no Kafka

    configure_logging()
    run = join_run(options, wait_seconds)
    settings, broker = run.settings, run.broker
    metrics = Metrics()
    with ExitStack() as open_parts:
        port = settings.metrics.port if metrics_port is None else metrics_port
        if port is not None:
            server = open_parts.enter_context(metrics.serve(settings.metrics.host, port))
            log.info("metrics served", role=name, host=server.host, port=server.port)
        signals = open_parts.enter_context(StopSignals())
        log.info("role begins", role=name, run=settings.run_name, broker=broker.address, pid=os.getpid())
        run_role(Part(settings, run.manifest, options.home.resolve(), name), broker, metrics, signals.stop)
    log.info("role ends", role=name, run=settings.run_name, stopped=bool(signals.received))
    return signals.exit_status


def _dispatcher(part: Part, broker: Broker, metrics: Metrics, stop: Event) -> None:
    from producers.dispatcher.role import run_dispatcher  # noqa: PLC0415
    from rollog.run.role_settings import dispatcher_settings  # noqa: PLC0415

    run_dispatcher(dispatcher_settings(part.settings), broker, metrics, stop)


def _rollout(part: Part, broker: Broker, metrics: Metrics, stop: Event) -> None:
    from producers.rollout.role import run_rollout  # noqa: PLC0415
    from rollog.run.role_settings import rollout_settings  # noqa: PLC0415

    run_rollout(rollout_settings(part.settings, part.manifest, part.home, part.name), broker, metrics, stop)


def _trainer(
    part: Part, broker: Broker, metrics: Metrics, stop: Event, *, amendment: dict[str, object]
) -> None:
    from rollog.run.role_settings import trainer_settings  # noqa: PLC0415
    from trainer.role import run_trainer  # noqa: PLC0415

    settings = trainer_settings(part.settings, part.manifest, part.home)
    run_trainer(settings, broker, metrics, stop, amendment=amendment)
