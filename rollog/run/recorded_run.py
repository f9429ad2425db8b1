"""A recorded run, opened to be read: on its broker, or in an archive that `rollog export` made."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from consumers.archive import WeightsChoice
from rollog.kernel.archived_weights import archived_weights
from rollog.kernel.broker.archive import ArchiveBroker
from rollog.kernel.broker.denials import naming_rights
from rollog.kernel.broker.rights import Role
from rollog.kernel.broker.topics import RunTopics
from rollog.kernel.errors import ConfigError
from rollog.kernel.runs import find_run
from rollog.kernel.weights import WeightsStore
from rollog.run.connection import embedded_unless_named
from rollog.run.joining import find_run_of
from rollog.run.manifest_check import checked_manifest
from rollog.settings.scopes import local_keys
from rollog.settings.settings import Settings, by_section
from rollog.settings.sources import assigned

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from rollog.kernel.broker.ports import Broker
    from rollog.run.manifest_check import ChooseManifest
    from rollog.run.request import RecordedRunRequest
    from schemas import RunManifest

_of_an_archive = frozenset(key for key in local_keys if key.startswith("model."))


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedRun:
    """A recorded run. Over an archive `broker` and `store` can only be read; `is_archive` tells.

    `ledger_head` is what an archive says its ledger ends with; `has_all_weights` is False where only some files were
    put into it.
    """

    broker: Broker
    topics: RunTopics
    store: WeightsStore
    settings: Settings
    manifest: RunManifest
    is_archive: bool
    ledger_head: str | None = None
    has_all_weights: bool = True


@contextmanager
def open_run(
    request: RecordedRunRequest,
    choose: ChooseManifest = checked_manifest,
    *,
    role: Role = Role.READER,
) -> Iterator[RecordedRun]:
    """The run that a command is to read, on its broker or in an archive, for as long as the block lasts.

    `choose` says which manifest counts, or refuses; `role` whose rights the command needs. Where the embedded broker of
    the state directory does not run, it does so for that time. Raises ConfigError, RunNotFound, BrokerUnreachable,
    NotAuthorized, and ArchiveError for a file that is no archive or is damaged.
    """
    if request.archive is not None:
        yield _archived_run(request, request.archive, choose)
        return
    common = request.common
    with embedded_unless_named(common.local_layers().settings().broker, common.home, has_runs=True):
        run = _run_on_broker(request, choose, role)
        with naming_rights(run.broker, role, run.topics, run.settings.optional_topics):
            yield run


def _run_on_broker(request: RecordedRunRequest, choose: ChooseManifest, role: Role) -> RecordedRun:
    found = find_run_of(request.common, wait_seconds=0.0, choose=choose, role=role)
    return RecordedRun(
        broker=found.broker,
        topics=RunTopics(found.manifest.prefix, found.manifest.run),
        store=WeightsStore(found.settings.weights.uri or found.manifest.weights_uri),
        settings=found.settings,
        manifest=found.manifest,
        is_archive=False,
    )


def _archived_run(request: RecordedRunRequest, path: Path, choose: ChooseManifest) -> RecordedRun:
    if request.common.broker is not None:
        raise ConfigError(f"--archive {path} stands in place of a broker: leave out --broker")
    changes = assigned(request.common.assignments)
    if others := sorted(changes.keys() - _of_an_archive):
        raise ConfigError(
            f"--set {others[0]}: an archive holds everything but the model's directory; only "
            f"{' and '.join(sorted(_of_an_archive))} can be set"
        )
    broker = ArchiveBroker(path)
    topics = broker.topics
    if request.run not in (None, topics.run):
        raise ConfigError(f"archive {path} is of run {topics.run!r}, not of {request.run!r}")
    manifest = choose(broker, find_run(broker, topics.prefix, topics.run))
    return RecordedRun(
        broker=broker,
        topics=topics,
        store=archived_weights(broker.file),
        settings=Settings.from_manifest(manifest.config_json).changed(**by_section(changes)),
        manifest=manifest,
        is_archive=True,
        ledger_head=broker.file.manifest.ledger_head,
        has_all_weights=broker.file.manifest.weights_chosen == WeightsChoice.ALL,
    )
