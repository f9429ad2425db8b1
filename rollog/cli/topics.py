"""`rollog topics`: the topics of a run on any broker."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from rollog.cli.options import CommonOptions, common_options

if TYPE_CHECKING:
    from rollog.broker.ports import TopicSpec
    from rollog.cli.settings import Settings


@click.group()
def topics() -> None:
    """Create, check or print the topics of a run."""


@topics.command()
@common_options
def create(options: CommonOptions) -> None:
    """Create a run: its topics and its manifest.

    Afterwards `rollog dispatch`, `rollog rollout` and `rollog train` with the same --run and --broker make the run
    happen, on this machine or on others. Without --config it is the demo, whose files are made first.
    """
    from rollog.cli.connection import connect  # noqa: PLC0415  # help needs no Kafka
    from rollog.cli.creation import complete, create_run, refuse_taken_name  # noqa: PLC0415
    from rollog.cli.preparation import report_preparation  # noqa: PLC0415
    from rollog.cli.settings import check_files  # noqa: PLC0415

    settings = options.settings()
    check_files(settings)
    broker = connect(settings.broker, options.home)
    refuse_taken_name(broker, settings)
    settings = complete(settings, options.home, report_preparation())
    manifest = create_run(broker, settings)
    click.echo(f"created run {manifest.run} at {broker.address}; weights go to {manifest.weights_uri}")
    click.echo(f"next: rollog dispatch | rollout | train --run {manifest.run} --broker {broker.address}")


@topics.command()
@common_options
def check(options: CommonOptions) -> None:
    """Compare the topics of a run with what it needs; exit status 1 and every difference if they do not fit."""
    from rollog.broker.topics import check_topics  # noqa: PLC0415  # help needs no Kafka
    from rollog.cli.connection import connect  # noqa: PLC0415

    settings = options.settings()
    broker = connect(settings.broker, options.home)
    specs = _specs(settings)
    with broker.admin() as admin:
        check_topics(admin, specs)
    click.echo(f"{len(specs)} topics at {broker.address} are as run {settings.run_name} needs them")


@topics.command(name="print")
@common_options
def print_topics(options: CommonOptions) -> None:
    """Print the topics of a run with their settings, without asking any broker."""
    for spec in _specs(options.settings()):
        config = " ".join(f"{key}={value}" for key, value in sorted(spec.config.items()))
        click.echo(
            f"{spec.name} partitions={spec.num_partitions} replicas={spec.replication_factor} {config}"
        )


def _specs(settings: Settings) -> list[TopicSpec]:
    from rollog.broker.topics import RunTopics, topic_specs  # noqa: PLC0415

    return topic_specs(RunTopics(settings.run.prefix, settings.run_name), settings.broker)
