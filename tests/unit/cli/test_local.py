"""The settings of a role started by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from rollog.broker.memory import MemoryBroker
from rollog.cli.creation import create_run
from rollog.cli.local import dispatcher_settings, rollout_settings, settings_of_run, trainer_settings
from rollog.cli.settings import Settings
from rollog.errors import ConfigError, RunExists, RunNotFound


def settings_named(name: str) -> Settings:
    return Settings().changed(
        run={"name": name},
        groups={"group_size": 4},
        weights={"uri": "file:///weights"},
        broker={"bootstrap_servers": "outside:1"},
    )


def a_broker_with(*names: str) -> MemoryBroker:
    broker = MemoryBroker()
    for name in names:
        create_run(broker, settings_named(name))
    return broker


def resolved(
    broker: MemoryBroker,
    *assignments: str,
    run: str | None = "first",
    environment: dict[str, str] | None = None,
) -> Settings:
    wanted = Settings().changed(run={"name": run}, broker={"bootstrap_servers": "inside:2"})
    settings, _ = settings_of_run(
        broker, wanted, environment=environment or {}, assignments=assignments, wait_seconds=0
    )
    return settings


def test_the_manifest_rules() -> None:
    settings = resolved(a_broker_with("first"))

    assert settings.groups.group_size == 4
    assert settings.run_name == "first"


def test_the_address_is_the_one_named_here() -> None:
    assert resolved(a_broker_with("first")).broker.bootstrap_servers == "inside:2"


def test_what_belongs_to_the_machine_may_differ() -> None:
    settings = resolved(
        a_broker_with("first"),
        "rollout.capacity=3",
        "model.path=/models/here",
        environment={"ROLLOG_METRICS__PORT": "0", "ROLLOG_GROUPS__GROUP_SIZE": "99", "ROLLOG_HOME": "/x"},
    )

    assert (settings.rollout.capacity, settings.model.path, settings.metrics.port) == (3, "/models/here", 0)
    assert settings.groups.group_size == 4


def test_what_belongs_to_the_run_may_not() -> None:
    with pytest.raises(ConfigError, match=r"groups\.group_size belongs to the run"):
        resolved(a_broker_with("first"), "groups.group_size=5")


def test_the_only_run_needs_no_name() -> None:
    assert resolved(a_broker_with("first"), run=None).run_name == "first"


def test_one_of_several_runs_has_to_be_named() -> None:
    with pytest.raises(ConfigError, match=r"--run NAME .*first, second"):
        resolved(a_broker_with("first", "second"), run=None)


def test_a_run_that_does_not_exist_is_not_waited_for_for_ever() -> None:
    with pytest.raises(RunNotFound, match="second"):
        resolved(a_broker_with("first"), run="second")


def test_a_run_cannot_be_created_twice() -> None:
    with pytest.raises(RunExists, match="'first' exists already"):
        create_run(a_broker_with("first"), settings_named("first"))


def test_each_role_gets_its_sections() -> None:
    broker = a_broker_with("first")
    settings = resolved(broker)
    manifest = create_run(broker, settings_named("second"))

    dispatcher = dispatcher_settings(settings)
    worker = rollout_settings(settings, manifest, Path("/state"), "box")
    trainer = trainer_settings(settings, manifest, Path("/state"))

    assert (dispatcher.run, dispatcher.groups) == ("first", settings.groups)
    assert (worker.name, worker.weights_uri) == ("box", "file:///weights")
    assert (trainer.weights_uri, trainer.manifest_json) == ("file:///weights", manifest.config_json)


def test_the_manifest_knows_the_partitions_of_every_topic() -> None:
    manifest = create_run(MemoryBroker(), settings_named("first"))

    assert manifest.partitions["tasks"] == settings_named("first").broker.max_workers
    assert manifest.partitions["dead-letters"] == 1
    assert "rollog.runs" not in manifest.partitions
