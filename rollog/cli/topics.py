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
    from rollog.kernel.broker.acls import Cluster
    from rollog.kernel.broker.ports import TopicSpec
    from rollog.run.request import RecordedRunRequest, RunRequest
    from rollog.settings.settings import Settings


_cluster_option = click.option(
    "--cluster", metavar="NAME", help="Name of Strimzi's Kafka resource, for --format strimzi."
)
_command_config_option = click.option(
    "--command-config",
    metavar="FILE",
    help="Properties file of the administrator, which the printed commands then name.",
)


@click.group()
def topics() -> None:
    """Create, check, print or prune the topics of a run; print the ACLs of its roles."""


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
@click.option(
    "--format",
    "style",
    type=click.Choice(["plain", "kafka-topics", "strimzi", "json"]),
    default="plain",
    show_default=True,
    help="Lines to read, commands of Kafka's tool, KafkaTopic resources, or a list for Terraform and scripts.",
)
@_cluster_option
@_command_config_option
@common_options
def print_topics(options: RunRequest, style: str, cluster: str | None, command_config: str | None) -> None:
    """Print the topics of a run with their settings, without asking any broker.

    An administrator can make them from that where the cluster lets nobody else: `rollog topics create` then takes them
    as they are.
    """
    from rollog.kernel.broker import printed_topics  # noqa: PLC0415  # help needs no Kafka

    settings = options.settings()
    specs = _specs(settings)
    match style:
        case "kafka-topics":
            lines = printed_topics.kafka_topics_commands(specs, _reached(settings, command_config))
            click.echo("\n".join(lines))
        case "strimzi":
            click.echo(printed_topics.kafka_topics(specs, cluster=_strimzi_cluster(cluster)), nl=False)
        case "json":
            click.echo(printed_topics.topics_json(specs))
        case _:
            click.echo("\n".join(printed_topics.plain_lines(specs)))


@topics.command()
@click.option(
    "--principal",
    "principals",
    multiple=True,
    required=True,
    metavar="ROLE=TYPE:NAME",
    help="Who a role is to Kafka, as in trainer=User:rollog-trainer; may be given several times. ROLE is "
    "dispatcher, worker, trainer, creator, reader, scorer, administrator, or up for all that `rollog up` does.",
)
@click.option(
    "--format",
    "style",
    type=click.Choice(["kafka-acls", "strimzi", "json"]),
    default="kafka-acls",
    show_default=True,
    help="Commands of Kafka's tool, KafkaUser resources, or a list for Terraform and scripts.",
)
@click.option(
    "--prefix",
    metavar="PREFIX",
    help="For all runs under this prefix instead of one run; for creator, reader, administrator and up.",
)
@click.option("--remove", is_flag=True, help="Commands that take these rights away again.")
@click.option(
    "--authentication",
    type=click.Choice(["scram-sha-512", "tls", "tls-external"]),
    default="scram-sha-512",
    show_default=True,
    help="How a KafkaUser proves who it is.",
)
@_cluster_option
@_command_config_option
@common_options
def acls(
    *,
    options: RunRequest,
    principals: tuple[str, ...],
    style: str,
    prefix: str | None,
    remove: bool,
    authentication: str,
    cluster: str | None,
    command_config: str | None,
) -> None:
    """Print the rights of roles in a run as ACLs, without asking any broker.

    They are all that a role needs, and nothing else. With --config of the run they include what its settings ask for
    (topics `turns` and `rewards`).
    """
    from rollog.kernel.broker.acls import acls_json, kafka_acls_commands, kafka_users  # noqa: PLC0415
    from rollog.run.granting import grants_of_run, grants_under_prefix  # noqa: PLC0415

    if prefix is not None and options.run is not None:
        raise click.UsageError(
            f"--run {options.run} and --prefix {prefix}: name one run, or the prefix of all"
        )
    if remove and style != "kafka-acls":
        raise click.UsageError(f"--remove prints commands; with --format {style} leave it out")
    settings = options.settings()
    grants = (
        grants_of_run(principals, settings) if prefix is None else grants_under_prefix(principals, prefix)
    )
    match style:
        case "strimzi":
            name = _strimzi_cluster(cluster)
            click.echo(kafka_users(grants, cluster=name, authentication=authentication), nl=False)
        case "json":
            click.echo(acls_json(grants))
        case _:
            reached = _reached(settings, command_config)
            click.echo("\n".join(kafka_acls_commands(grants, reached, is_removed=remove)))


@topics.group()
def schemas() -> None:
    """Register, check, print or delete a run's schemas in its schema registry (broker.framing = "registry")."""


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


@schemas.command(name="delete")
@click.option("--yes", is_flag=True, help="Do not ask.")
@common_options
def delete_registered(options: RunRequest, yes: bool) -> None:
    """Delete the subjects of a run from the registry for good, with their schemas.

    `rollog runs delete` does so by itself. By hand it is for a run that was deleted while its registry did not answer,
    was not named, or did not let them go. Records of rollog can be read without them; a role of a run that goes on ends
    at its next start until they are registered again.
    """
    from rollog.run.own_subjects import existing_subjects  # noqa: PLC0415

    settings = _with_registry(options.settings())
    client = settings.registry.client(settings.run_name)
    names = existing_subjects(client, settings)
    if not names:
        click.echo(f"no subject of run {settings.run_name} is in the schema registry at {client.url}")
        return
    click.echo("\n".join([f"in the schema registry at {client.url}:", *(f"  {name}" for name in names)]))
    if not yes:
        click.confirm("Delete all this for good?", abort=True)
    for name in names:
        client.delete(name)
    click.echo(f"deleted {len(names)} subjects")


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
    from rollog.kernel.broker.rights import Role  # noqa: PLC0415  # help needs no Kafka
    from rollog.run.pruning import prune_samples  # noqa: PLC0415
    from rollog.run.recorded_run import open_run  # noqa: PLC0415

    source.refuse_copies()
    with open_run(source, role=Role.ADMINISTRATOR) as run:
        for line in prune_samples(run, source.common.home, keep_steps=keep_steps, is_dry_run=dry_run):
            click.echo(line)


def _with_registry(settings: Settings) -> Settings:
    if not settings.has_registry:
        raise ConfigError(
            f'broker.framing = {settings.broker.framing!r}: only a run with broker.framing = "registry" has schemas '
            "in a registry; `rollog topics schemas print` shows those of any run"
        )
    return settings


def _reached(settings: Settings, command_config: str | None) -> Cluster:
    from rollog.kernel.broker.acls import Cluster  # noqa: PLC0415

    address = settings.broker.bootstrap_servers or "localhost:9092"
    return Cluster(bootstrap_servers=address, command_config=command_config)


def _strimzi_cluster(name: str | None) -> str:
    if name is None:
        raise click.UsageError("--format strimzi needs --cluster NAME, the name of the Kafka resource")
    return name


def _specs(settings: Settings) -> list[TopicSpec]:
    from rollog.kernel.broker.topics import RunTopics, topic_specs  # noqa: PLC0415

    return topic_specs(
        RunTopics(settings.run.prefix, settings.run_name), settings.broker, settings.optional_topics
    )
