"""Where a command reads a recorded run from: its broker, or an archive that `rollog export` made."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rollog.cli.options import CommonOptions, home_option, one_run

if TYPE_CHECKING:
    from rollog.kernel.broker.ports import Broker
    from rollog.kernel.broker.topics import RunTopics
    from rollog.kernel.weights import WeightsStore
    from rollog.settings.settings import Settings
    from schemas import RunManifest

Command = Callable[..., Any]

_of_an_archive = frozenset({"model.path", "model.tokenizer"})


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """What the arguments of a command say about the run it reads. `archive` stands in place of a broker."""

    run: str | None
    archive: Path | None
    common: CommonOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSource:
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


def run_source_options(function: Command) -> Command:
    """Add RUN (or `--run`), `--archive`, `--broker`, `--home` and `--set`; the command receives them as `source`."""

    @wraps(function)
    def command(
        *,
        run_name: str | None,
        run: str | None,
        archive: Path | None,
        broker: str | None,
        home: Path,
        assignments: tuple[str, ...],
        **others: Any,
    ) -> Any:
        run = one_run(run_name, run)
        common = CommonOptions(
            config=None, home=home.expanduser(), assignments=assignments, run=run, broker=broker
        )
        return function(source=SourceOptions(run=run, archive=archive, common=common), **others)

    decorated: Command = home_option(command)
    for decorate in reversed(_decorators()):
        decorated = decorate(decorated)
    return decorated


def _decorators() -> list[Callable[[Command], Command]]:
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


def open_run(source: SourceOptions) -> RunSource:
    """The run that a command is to read, on its broker or in an archive.

    Raises ConfigError, RunNotFound, BrokerUnreachable, and ArchiveError for a file that is no archive or is damaged.
    """
    return _recorded_run(source) if source.archive is None else _archived_run(source, source.archive)


def _recorded_run(source: SourceOptions) -> RunSource:
    from rollog.kernel.broker.topics import RunTopics  # noqa: PLC0415  # help needs no Kafka
    from rollog.kernel.weights import WeightsStore  # noqa: PLC0415
    from rollog.run.connection import data_directory, embedded_unless_named  # noqa: PLC0415
    from rollog.run.joining import find_run_of  # noqa: PLC0415

    if data_directory(source.common.home).is_dir():
        # Where the local broker does not run, it does so until the command has ended.
        broker = embedded_unless_named(source.common.settings().broker, source.common.home)
        click.get_current_context().with_resource(broker)
    found = find_run_of(source.common, wait_seconds=0.0)
    return RunSource(
        broker=found.broker,
        topics=RunTopics(found.manifest.prefix, found.manifest.run),
        store=WeightsStore(found.settings.weights.uri or found.manifest.weights_uri),
        settings=found.settings,
        manifest=found.manifest,
        is_archive=False,
    )


def _archived_run(source: SourceOptions, path: Path) -> RunSource:
    from consumers.archive import WeightsChoice  # noqa: PLC0415
    from rollog.kernel.archived_weights import archived_weights  # noqa: PLC0415  # help needs no Avro
    from rollog.kernel.broker.archive import ArchiveBroker  # noqa: PLC0415
    from rollog.kernel.errors import ConfigError  # noqa: PLC0415
    from rollog.kernel.runs import find_run  # noqa: PLC0415
    from rollog.settings.settings import Settings, by_section  # noqa: PLC0415
    from rollog.settings.sources import assigned  # noqa: PLC0415

    if source.common.broker is not None:
        raise ConfigError(f"--archive {path} stands in place of a broker: leave out --broker")
    changes = assigned(source.common.assignments)
    if others := sorted(changes.keys() - _of_an_archive):
        raise ConfigError(
            f"--set {others[0]}: an archive holds everything but the model's directory; only "
            f"{' and '.join(sorted(_of_an_archive))} can be set"
        )
    broker = ArchiveBroker(path)
    topics = broker.topics
    if source.run not in (None, topics.run):
        raise ConfigError(f"archive {path} is of run {topics.run!r}, not of {source.run!r}")
    manifest = find_run(broker, topics.prefix, topics.run)
    return RunSource(
        broker=broker,
        topics=topics,
        store=archived_weights(broker.file),
        settings=Settings.from_manifest(manifest.config_json).changed(**by_section(changes)),
        manifest=manifest,
        is_archive=True,
        ledger_head=broker.file.manifest.ledger_head,
        has_all_weights=broker.file.manifest.weights_chosen == WeightsChoice.ALL,
    )
