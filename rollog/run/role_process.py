"""One role of a run that exists, in this process: joined, served its metrics, run until its end or a signal."""

from __future__ import annotations

import os
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rollog.kernel.broker.denials import naming_rights
from rollog.kernel.disk_room import naming_full_disk
from rollog.kernel.errors import BrokerTimeout, BrokerUnreachable, Expired
from rollog.kernel.large_imports import large_imports
from rollog.kernel.logs import configure_logging, get_logger
from rollog.kernel.metrics import Metrics
from rollog.kernel.private_directory import make_private
from rollog.kernel.signals import StopSignals
from rollog.run.framing import checked_at_start
from rollog.run.joining import join_run
from rollog.run.role_settings import dispatcher_settings, rollout_settings, trainer_settings
from rollog.run.supervisor_lock import refuse_beside_supervisor

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path
    from threading import Event

    from rollog.kernel.broker.rights import Role
    from rollog.run.joining import JoinedRun
    from rollog.run.request import RunRequest

log = get_logger("role")

_stages = {"dispatcher": "dispatcher", "worker": "rollout", "trainer": "trainer"}
"""Whose metrics a role serves, by its rights."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleContext:
    """What a role runs with: its name, its run, the state directory, its metrics, and what stops it."""

    name: str
    run: JoinedRun
    home: Path
    metrics: Metrics
    stop: Event


def run_role(
    role: Callable[[RoleContext], None],
    request: RunRequest,
    *,
    rights: Role,
    name: str,
    metrics_port: int | None,
    wait_seconds: float,
) -> int:
    """Run one role to the end of its run. Returns 0 then, and 128 + signal after a graceful stop.

    `rights` says which rights on the cluster it is to have. Raises as `join_run` does, and what the role raises;
    Expired in place of what only says that the broker was silent, DiskFull where there is no room for what it writes.
    """
    configure_logging()
    try:
        with naming_full_disk(request.home):
            run = join_run(request, wait_seconds, rights)
            checked_at_start(run.broker, run.settings, wait_seconds)
            with naming_rights(run.broker, rights, run.topics, run.settings.optional_topics):
                metrics = Metrics(stage=_stages[rights])
                return _run_joined(
                    role, run, request.home.resolve(), name=name, metrics=metrics, metrics_port=metrics_port
                )
    except (BrokerTimeout, BrokerUnreachable) as error:
        # The role or its broker was suspended, or the broker is away: nothing that a restart could wear out.
        raise Expired(f"{error}; start the role again: it goes on from the log") from error


def _run_joined(
    role: Callable[[RoleContext], None],
    run: JoinedRun,
    home: Path,
    *,
    name: str,
    metrics: Metrics,
    metrics_port: int | None,
) -> int:
    make_private(home)
    settings = run.settings
    with ExitStack() as resources:
        port = settings.metrics.port if metrics_port is None else metrics_port
        if port is not None:
            server = resources.enter_context(metrics.serve(settings.metrics.host, port))
            log.info("metrics served", role=name, host=server.host, port=server.port)
        signals = resources.enter_context(StopSignals())
        log.info("role begins", role=name, run=settings.run_name, broker=run.broker.address, pid=os.getpid())
        role(RoleContext(name=name, run=run, home=home, metrics=metrics, stop=signals.stop))
    log.info("role ends", role=name, run=settings.run_name, stopped=bool(signals.received))
    return signals.exit_status


def dispatcher(context: RoleContext) -> None:
    """Dispatch until the run is over. Raises ConfigError beside a `rollog up` that runs a dispatcher here."""
    _refuse_second(context, "dispatcher")
    from producers.dispatcher.role import run_dispatcher  # noqa: PLC0415  # each role imports what it needs alone

    settings = dispatcher_settings(context.run.settings, context.home)
    run_dispatcher(settings, context.run.broker, context.metrics, context.stop)


def rollout(context: RoleContext) -> None:
    """Generate until the run is over."""
    from producers.rollout.role import run_rollout  # noqa: PLC0415  # each role imports what it needs alone

    run = context.run
    settings = rollout_settings(run.settings, run.manifest, context.home, context.name)
    run_rollout(settings, run.broker, context.metrics, context.stop)


def trainer(context: RoleContext, *, amendment: Mapping[str, object]) -> None:
    """Train until the run is over, with settings changed by `amendment`, by dotted key, from the next step on.

    Raises ConfigError beside a `rollog up` that runs a trainer here.
    """
    _refuse_second(context, "trainer")
    with large_imports():
        from trainer.role import run_trainer  # noqa: PLC0415  # each role imports what it needs alone

    run = context.run
    settings = trainer_settings(run.settings, run.manifest, context.home)
    run_trainer(settings, run.broker, context.metrics, context.stop, amendment=amendment)


def _refuse_second(context: RoleContext, role: str) -> None:
    run = context.run.settings.run_name
    refuse_beside_supervisor(context.home / "runs" / run, run, role)
