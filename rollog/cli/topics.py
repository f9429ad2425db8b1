"""`rollog topics`: the topics of a run on any broker."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from rollog.cli.options import common_options, preflight_option, recorded_run_options
from rollog.kernel.called import called_as
from rollog.kernel.errors import ConfigError

if TYPE_CHECKING:
    from rollog.kernel.broker.ports import TopicSpec
    from rollog.run.request import RecordedRunRequest, RunRequest
    from rollog.settings.settings import Settings


@click.group()
def topics() -> None:
    """Create, check, print or prune the topics of a run."""


@topics.command()
@click.option(
    "--if-missing", is_flag=True, help="Succeed, too, when the run exists with this very configuration."
)
@preflight_option
@common_options
def create(options: RunRequest, if_missing: bool, preflight: bool) -> None:
    """Create a run: its topics and its manifest.

    Afterwards `rollog dispatch`, `rollog rollout` and `rollog train` with the same --run and --broker make the run
    happen, on this machine or on others; `rollog watch` shows it. Without --config it is the demo, whose files are
    made first.
    """
    from rollog.run.connection import connect  # noqa: PLC0415  # help needs no Kafka
    from rollog.run.creation import (  # noqa: PLC0415
        complete,
        create_run,
        create_run_if_missing,
        refuse_taken_name,
    )
    from rollog.run.preflight import refuse_what_cannot_run  # noqa: PLC0415
    from rollog.run.preparation import report_preparation, warn  # noqa: PLC0415

    settings = options.settings()
    if if_missing and settings.run.name is None:
        raise ConfigError("--if-missing needs the name of the run: add --run NAME")
    if preflight:
        refuse_what_cannot_run(settings, options.home, warn)
    broker = connect(settings.broker, options.home)
    if not if_missing:
        refuse_taken_name(broker, settings)
    settings = complete(settings, options.home, report_preparation())
    if if_missing:
        manifest, is_new = create_run_if_missing(broker, settings)
    else:
        manifest, is_new = create_run(broker, settings), True
    if not is_new:
        click.echo(f"run {manifest.run} exists already at {broker.address} with this configuration")
        return
    click.echo(f"created run {manifest.run} at {broker.address}; weights go to {manifest.weights_uri}")
    program = called_as(sys.argv[0], Path.cwd())
    click.echo(
        f"next: {program} dispatch | rollout | train | watch --run {manifest.run} --broker {broker.address}"
    )


@topics.command()
@common_options
def check(options: RunRequest) -> None:
    """Compare the topics of a run with what it needs; exit status 1 and every difference if they do not fit."""
    from rollog.kernel.broker.topics import check_topics  # noqa: PLC0415  # help needs no Kafka
    from rollog.run.connection import connect  # noqa: PLC0415

    settings = options.settings()
    broker = connect(settings.broker, options.home)
    specs = _specs(settings)
    with broker.admin() as admin:
        check_topics(admin, specs)
    click.echo(f"{len(specs)} topics at {broker.address} are as run {settings.run_name} needs them")


@topics.command(name="print")
@common_options
def print_topics(options: RunRequest) -> None:
    """Print the topics of a run with their settings, without asking any broker."""
    for spec in _specs(options.settings()):
        config = " ".join(f"{key}={value}" for key, value in sorted(spec.config.items()))
        click.echo(
            f"{spec.name} partitions={spec.num_partitions} replicas={spec.replication_factor} {config}"
        )


@topics.group()
def schemas() -> None:
    """Register, check or print the schemas of a run in its schema registry (broker.framing = "registry")."""


@schemas.command()
@common_options
def register(options: RunRequest) -> None:
    """Register the schemas of a run under its subjects; what is there already stays.

    `rollog up` and `rollog topics create` do so by themselves. By hand it is for a registry that only some may write
    to, and for a run that goes on with a newer rollog.
    """
    from rollog.run.framing import register_schemas  # noqa: PLC0415  # help needs no Kafka

    settings = _with_registry(options.settings())
    for each in register_schemas(settings):
        click.echo(f"{each.subject.name} id={each.schema_id} fingerprint={each.schema.fingerprint.hex()}")


@schemas.command(name="check")
@common_options
def check_registered(options: RunRequest) -> None:
    """Compare the registry with what a run needs; exit status 2 and every difference if something is missing."""
    from rollog.run.framing import check_schemas  # noqa: PLC0415  # help needs no Kafka

    settings = _with_registry(options.settings())
    found = check_schemas(settings)
    click.echo(f"{len(found)} schemas of run {settings.run_name} are registered")


@schemas.command(name="print")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line, with the schema itself.")
@common_options
def print_schemas(options: RunRequest, as_json: bool) -> None:
    """Print the subjects of a run with their schemas, oldest first, without asking any registry."""
    from rollog.run.framing import subjects_of_run  # noqa: PLC0415  # help needs no Kafka

    for subject in subjects_of_run(options.settings()):
        for schema in subject.schemas:
            row = {
                "subject": subject.name,
                "record": schema.name,
                "fingerprint": schema.fingerprint.hex(),
                "schema": schema.definition,
            }
            shown = f"{subject.name} record={schema.name} fingerprint={schema.fingerprint.hex()}"
            click.echo(json.dumps(row) if as_json else shown)


@topics.command()
@recorded_run_options
@click.option(
    "--keep-steps",
    type=click.IntRange(min=1),
    default=100,
    show_default=True,
    help="The audit window: the newest steps whose samples stay, to be audited and trained again.",
)
@click.option("--dry-run", is_flag=True, help="Only say what would be deleted, and what would be lost by it.")
def prune(source: RecordedRunRequest, keep_steps: int, dry_run: bool) -> None:
    """Delete the samples of RUN that nothing needs any more; for good.

    Those go that have a disposition and are older than the newest --keep-steps steps. Refused where recovery of the run
    would need them: run this with the --home of the trainer, whose checkpoints say from where it would train again.
    Ledger, weights, tasks and everything else stay.

    Consumes steps and the checkpoints of --home; deletes records of samples.
    """
    from rollog.run.pruning import prune_samples  # noqa: PLC0415  # help needs no Kafka
    from rollog.run.recorded_run import open_run  # noqa: PLC0415

    if source.archive is not None:
        raise ConfigError(f"--archive {source.archive} is never changed: name a run on a broker")
    with open_run(source) as run:
        for line in prune_samples(run, source.common.home, keep_steps=keep_steps, is_dry_run=dry_run):
            click.echo(line)


def _with_registry(settings: Settings) -> Settings:
    if settings.broker.framing != "registry":
        raise ConfigError(
            f'broker.framing = {settings.broker.framing!r}: only a run with broker.framing = "registry" has schemas '
            "in a registry; `rollog topics schemas print` shows those of any run"
        )
    return settings


def _specs(settings: Settings) -> list[TopicSpec]:
    from rollog.kernel.broker.topics import RunTopics, topic_specs  # noqa: PLC0415

    return topic_specs(
        RunTopics(settings.run.prefix, settings.run_name), settings.broker, settings.optional_topics
    )
