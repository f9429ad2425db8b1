"""Joining a run that exists: its settings by the manifest, its broker, its topics checked."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rollog.kernel.broker.topics import RunTopics, check_topics, topic_specs
from rollog.run.connection import connect
from rollog.run.role_settings import settings_of_run

if TYPE_CHECKING:
    from rollog.cli.options import CommonOptions
    from rollog.kernel.broker.ports import Broker
    from rollog.settings.settings import Settings
    from schemas import RunManifest


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinedRun:
    """A run as a role or an onlooker sees it."""

    settings: Settings
    manifest: RunManifest
    broker: Broker


def join_run(options: CommonOptions, wait_seconds: float) -> JoinedRun:
    """The run that `options` name, to take part in it, waiting for it to be created.

    Raises RunNotFound, ConfigError, BrokerUnreachable, and TopicMismatch where a topic is not as the run needs it.
    """
    found = find_run_of(options, wait_seconds)
    manifest = found.manifest
    with found.broker.admin() as admin:
        check_topics(admin, topic_specs(RunTopics(manifest.prefix, manifest.run), found.settings.broker))
    return found


def find_run_of(options: CommonOptions, wait_seconds: float) -> JoinedRun:
    """The run that `options` name, to read it, waiting for it to be created; its topics may be in any state.

    Raises RunNotFound, ConfigError, BrokerUnreachable.
    """
    wanted = options.settings()
    settings, manifest = settings_of_run(
        connect(wanted.broker, options.home),
        wanted,
        config=options.config,
        environment=os.environ,
        assignments=options.assignments,
        wait_seconds=wait_seconds,
    )
    # Connected anew, because the size of records is the run's.
    broker = connect(settings.broker, options.home)
    return JoinedRun(settings=settings, manifest=manifest, broker=broker)
