"""Joining a run that exists: which run is meant, its manifest, its settings, its broker, its topics checked.

The command line, environment and file say which run is meant and where its broker is; everything else that the roles
of a run share stands in its manifest.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rollog.kernel.broker.denials import naming_rights, require_rights
from rollog.kernel.broker.rights import Operation, Resource, Right, Role
from rollog.kernel.broker.topics import RunTopics, check_topics, topic_specs
from rollog.kernel.errors import ConfigError
from rollog.kernel.runs import find_run, read_runs
from rollog.run.connection import connect
from rollog.run.manifest_check import checked_manifest
from rollog.run.relocation import at_home
from rollog.settings.local import settings_of_run

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rollog.kernel.broker.ports import Admin, Broker, TopicSpec
    from rollog.run.manifest_check import ChooseManifest
    from rollog.run.request import RunRequest
    from rollog.settings.run import RunConfig
    from rollog.settings.settings import Settings
    from schemas import RunManifest


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinedRun:
    """A run as a role or an onlooker sees it."""

    settings: Settings
    manifest: RunManifest
    broker: Broker

    @property
    def topics(self) -> RunTopics:
        """Names of what the run owns on the broker."""
        return RunTopics(self.manifest.prefix, self.manifest.run)


def join_run(request: RunRequest, wait_seconds: float, role: Role = Role.READER) -> JoinedRun:
    """The run that is asked for, to take part in it as `role`, waiting for it to be created.

    Raises RunNotFound, ConfigError, BrokerUnreachable, NotAuthorized, which names all rights that are missing, and
    TopicMismatch where a topic that the role may look at is not as the run needs it.
    """
    found = find_run_of(request, wait_seconds, role=role, has_preflight=True)
    settings, topics = found.settings, found.topics
    require_rights(found.broker, role, topics, settings.optional_topics)
    specs = topic_specs(topics, settings.broker, settings.optional_topics)
    with found.broker.admin() as admin:
        hidden = _hidden(admin, specs)
        check_topics(admin, [spec for spec in specs if spec.name not in hidden])
    return found


def _hidden(admin: Admin, specs: Sequence[TopicSpec]) -> set[str]:
    """Topics that this client may not look at, with which it has nothing to do."""
    looks = (Operation.DESCRIBE, Operation.DESCRIBE_CONFIGS)
    rights = [Right(Resource.TOPIC, spec.name, look) for spec in specs for look in looks]
    return {right.name for right in admin.missing_rights(rights)}


def find_run_of(
    request: RunRequest,
    wait_seconds: float,
    choose: ChooseManifest = checked_manifest,
    *,
    role: Role = Role.READER,
    has_preflight: bool = False,
) -> JoinedRun:
    """The run that is asked for, to read it, waiting for it to be created; its topics may be in any state.

    `choose` says which manifest counts, or refuses. With `has_preflight` the rights of `role` are asked for before the
    run is waited for. Raises RunNotFound, ConfigError, BrokerUnreachable, NotAuthorized.
    """
    layers = request.local_layers()
    here = layers.settings()
    broker = connect(here.broker, request.home, wait_seconds=wait_seconds)
    if here.run.name is None:
        manifest = manifest_of_run(broker, here.run, wait_seconds, choose)
    else:
        topics = RunTopics(here.run.prefix, here.run.name)
        with naming_rights(broker, role, topics):
            if has_preflight:
                require_rights(broker, role, topics)
            manifest = manifest_of_run(broker, here.run, wait_seconds, choose)
    settings = settings_of_run(
        manifest.config_json, layers, placed=lambda recorded: at_home(recorded, request.home)
    )
    # How large records may be is the run's, and known only now.
    broker = broker.with_limits(
        connect_timeout_seconds=settings.broker.connect_timeout_seconds,
        max_record_bytes=settings.broker.max_record_bytes,
    )
    return JoinedRun(settings=settings, manifest=manifest, broker=broker)


def manifest_of_run(
    broker: Broker, wanted: RunConfig, wait_seconds: float, choose: ChooseManifest = checked_manifest
) -> RunManifest:
    """The manifest of the run of that name, or of the only one there is, compared with genesis once there is one.

    Raises RunNotFound when it is not there in time, ConfigError where no name is given and there is not one run, and
    where the manifest is not the one that the run began with.
    """
    name = wanted.name or _only_run(broker, wanted.prefix)
    return choose(broker, find_run(broker, wanted.prefix, name, wait_seconds=wait_seconds))


def _only_run(broker: Broker, prefix: str) -> str:
    runs = read_runs(broker, prefix)
    if len(runs) == 1:
        return next(iter(runs))
    known = ", ".join(sorted(runs)) or "none"
    raise ConfigError(f"name the run with --run NAME (runs at {broker.address}: {known})")
