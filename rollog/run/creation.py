"""Bringing a run into being: the demo's files, its topics, its manifest."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from rollog import __version__
from rollog.kernel.broker.acls import Cluster
from rollog.kernel.broker.denials import naming_rights, require_rights
from rollog.kernel.broker.printed_topics import kafka_topics_commands
from rollog.kernel.broker.rights import Role
from rollog.kernel.broker.topics import RunTopics, check_topics, ensure_topics, topic_specs
from rollog.kernel.errors import ConfigError, NotAuthorized, RunExists
from rollog.kernel.logs import get_logger
from rollog.kernel.machine import num_processors
from rollog.kernel.private_directory import make_private
from rollog.kernel.runs import find_run, name_taken, read_runs, register_run
from rollog.run.framing import check_schemas, register_schemas
from rollog.run.names import made_up_name
from rollog.settings.scopes import local_keys
from rollog.settings.settings import Settings, by_key, check_files, config_sha256, with_absolute_paths
from schemas import RunManifest

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from rollog.kernel.broker.ports import Broker, TopicSpec

log = get_logger("runs")
demo_reward = "rollog.demo.countdown:reward"


def complete(settings: Settings, home: Path, on_progress: Callable[[str, float], None]) -> Settings:
    """The settings with a name, with files that exist and with an address for the weights.

    The demo's model and prompts are made (or found in the cache) where none are named.
    """
    check_files(settings)
    make_private(home)
    if settings.run.name is None:
        settings = settings.changed(run={"name": made_up_name()})
    if settings.environment.name is not None:
        settings = _with_made_model(settings, home / "cache" / "demo", on_progress)
    elif settings.model.path is None or settings.data.train is None:
        settings = _with_demo_files(settings, home / "cache" / "demo", on_progress)
    is_scored_outside = settings.reward.late and settings.data.held_out is None
    brings_rewards = settings.environment.name is not None or settings.agent.reward == "agent"
    if settings.reward.identity is None and not (brings_rewards or is_scored_outside):
        settings = settings.changed(reward={"function": demo_reward})
    if settings.weights.uri is None:
        directory = (home / "weights" / settings.run_name).resolve()
        settings = settings.changed(weights={"uri": directory.as_uri()})
    if settings.trainer.num_threads is None:
        settings = settings.changed(trainer={"num_threads": max(1, num_processors() // 2)})
    return with_absolute_paths(settings)


def create_run(broker: Broker, settings: Settings, role: Role = Role.CREATOR) -> RunManifest:
    """Create the topics of a new run, register its schemas where it has a registry, then its manifest, as `role`.

    Raises RunExists, TopicMismatch, RegistryRefused, RegistryUnreachable, and NotAuthorized, which names all rights of
    the role that are missing.
    """
    manifest = manifest_of(settings)
    topics = RunTopics(manifest.prefix, manifest.run)
    require_rights(broker, role, topics, settings.optional_topics)
    with naming_rights(broker, role, topics, settings.optional_topics):
        refuse_taken_name(broker, settings)
        register_schemas(settings)
        _ensure_topics(broker, specs_of_run(settings))
        register_run(broker, manifest)
    return manifest


def _ensure_topics(broker: Broker, specs: Sequence[TopicSpec]) -> None:
    """As `ensure_topics`; where the cluster does not let this client create any, the error has the commands that do."""
    with broker.admin() as admin:
        try:
            ensure_topics(admin, specs)
        except NotAuthorized as refused:
            existing = admin.describe_topics([spec.name for spec in specs])
            missing = [spec for spec in specs if spec.name not in existing]
            if not missing:
                raise
            commands = kafka_topics_commands(missing, Cluster(bootstrap_servers=broker.address))
            raise NotAuthorized(
                f"{broker.principal or 'this client'} may not create topics at {broker.address} ({refused}). Let an "
                "administrator of the cluster create those that are missing, then create the run again, which takes "
                "topics as they are:\n" + "\n".join(f"  {command}" for command in commands)
            ) from refused


def create_run_if_missing(broker: Broker, settings: Settings) -> tuple[RunManifest, bool]:
    """The run that these completed settings describe, and whether it was created now.

    Keys that may differ between machines are not compared. Raises ConfigError, naming every other key that differs,
    when a run of that name has another configuration, and TopicMismatch when its topics are not as it needs them.
    """
    try:
        return create_run(broker, settings), True
    except RunExists:
        existing = find_run(broker, settings.run.prefix, settings.run_name)
    _refuse_differences(existing, manifest_of(settings), broker.address)
    with broker.admin() as admin:
        check_topics(admin, specs_of_run(settings))
    check_schemas(settings)
    return existing, False


def specs_of_run(settings: Settings) -> list[TopicSpec]:
    """How the topics of the run of these completed settings should exist."""
    topics = RunTopics(settings.run.prefix, settings.run_name)
    return topic_specs(topics, settings.broker, settings.optional_topics)


def refuse_taken_name(broker: Broker, settings: Settings, role: Role = Role.CREATOR) -> None:
    """Raise RunExists when the name of the run, if it has one yet, is taken; NotAuthorized as `create_run`."""
    name, prefix = settings.run.name, settings.run.prefix
    if name is None:
        return
    with naming_rights(broker, role, RunTopics(prefix, name), settings.optional_topics):
        if name in read_runs(broker, prefix):
            raise name_taken(broker, name)


def manifest_of(settings: Settings) -> RunManifest:
    """The manifest of completed settings."""
    config_json = settings.to_manifest()
    topics = RunTopics(settings.run.prefix, settings.run_name)
    start = f"{topics.prefix}.{topics.run}."
    return RunManifest(
        run=topics.run,
        prefix=topics.prefix,
        seed=settings.run.seed,
        config_json=config_json,
        config_sha256=config_sha256(config_json),
        weights_uri=type(settings).from_manifest(config_json).weights.uri or "",
        rollog_version=__version__,
        created_unix_seconds=time.time(),
        partitions={
            spec.name.removeprefix(start): spec.num_partitions
            for spec in specs_of_run(settings)
            if spec.name.startswith(start)
        },
    )


def _refuse_differences(existing: RunManifest, wanted: RunManifest, address: str) -> None:
    if existing.config_sha256 == wanted.config_sha256:
        return
    # Read as every role reads it, so that a key younger than the run has its default there.
    there = by_key(Settings.from_manifest(existing.config_json).to_manifest())
    here = by_key(wanted.config_json)
    recorded, defaults = by_key(existing.config_json), by_key(Settings().to_manifest())
    # What machines may differ in makes no other run: threads, say, are filled in from this one's processors.
    differences = [
        f"{key} = {there[key]!r} there, {here[key]!r} here"
        for key in here
        if key not in local_keys
        and there[key] != here[key]
        # A default says nothing about a run that began before there was the key.
        and (key in recorded or here[key] != defaults[key])
    ]
    if not differences:
        former = {key: there[key] for key in here if key not in recorded and there[key] != here[key]}
        if former:
            log.info("the run began before there were these keys, and keeps what it computed with", **former)
        return
    raise ConfigError(
        f"run {wanted.run!r} exists at {address} with another configuration: {'; '.join(differences)}. "
        "A run keeps the configuration it began with: give these keys their old values, or name a new run with --run"
    )


def _with_made_model(settings: Settings, cache: Path, on_progress: Callable[[str, float], None]) -> Settings:
    if settings.model.path is not None:
        return settings
    from rollog.demo.prepare import made_for, prepare_model  # noqa: PLC0415  # imports torch when it has to train

    name = settings.environment.name
    task = None if name is None else made_for(name, settings.environment.parameters)
    if task is None:
        raise ConfigError(
            f"environment.name = {name!r} needs a model: name a directory or a Hugging Face model with model.path. "
            "One is made here for examples/guessing.toml and examples/reasoning_gym.toml alone, with the "
            "environment.parameters that they have"
        )
    directory = prepare_model(cache, task, on_progress=lambda done: on_progress("the example's model", done))
    return settings.changed(model={"path": str(directory)})


def _with_demo_files(settings: Settings, cache: Path, on_progress: Callable[[str, float], None]) -> Settings:
    from rollog.demo.prepare import prepare  # noqa: PLC0415  # imports torch when it has to train

    files = prepare(cache, on_progress=lambda fraction: on_progress("the demo's model", fraction))
    if settings.model.path is None:
        settings = settings.changed(model={"path": str(files.model)})
    if settings.data.train is None:
        settings = settings.changed(data={"train": str(files.train), "held_out": str(files.held_out)})
    return settings
