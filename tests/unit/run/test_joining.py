"""Joining a run: which one is meant, and the settings of a role there."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from rollog.kernel.broker.kafka import KafkaBroker
from rollog.kernel.broker.memory import MemoryBroker
from rollog.kernel.broker.topics import RunTopics, ensure_topics, topic_specs
from rollog.kernel.errors import ConfigError, RunExists, RunNotFound, TopicMismatch
from rollog.kernel.runs import register_run
from rollog.run.creation import create_run, create_run_if_missing, manifest_of
from rollog.run.joining import manifest_of_run
from rollog.run.role_settings import dispatcher_settings, rollout_settings, trainer_settings
from rollog.settings.local import local_layers, settings_of_run
from rollog.settings.settings import Settings, config_sha256


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
    config: Path | None = None,
) -> Settings:
    named = () if run is None else (f"run.name={run}",)
    layers = local_layers(
        config, environment or {}, (*assignments, *named, "broker.bootstrap_servers=inside:2")
    )
    manifest = manifest_of_run(broker, layers.settings().run, wait_seconds=0)
    return settings_of_run(manifest.config_json, layers)


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


def test_a_file_says_what_belongs_to_the_machine_and_may_say_more(tmp_path: Path) -> None:
    config = tmp_path / "run.toml"
    config.write_text(
        "[groups]\ngroup_size = 99\n[metrics]\nport = 0\n[rollout]\ncapacity = 3\n"
        "[rollout.engine_args]\nmax_num_seqs = 5\n[trainer]\nnum_threads = 2\nzero_stage = 3\n"
        '[model]\npath = "/models/here"\nmax_context_tokens = 9999\n'
    )

    settings = resolved(a_broker_with("first"), config=config)

    assert (settings.rollout.capacity, settings.model.path, settings.metrics.port) == (3, "/models/here", 0)
    assert settings.rollout.engine_args == {"max_num_seqs": 5}
    assert (settings.trainer.num_threads, settings.trainer.zero_stage) == (2, 1)
    assert (settings.groups.group_size, settings.model.max_context_tokens) == (4, 2048)


def test_flags_win_over_environment_over_file_for_the_machine_too(tmp_path: Path) -> None:
    config = tmp_path / "run.toml"
    config.write_text("[rollout]\ncapacity = 3\nnum_threads = 3\nload_attempts = 3\n")

    settings = resolved(
        a_broker_with("first"),
        "rollout.capacity=5",
        config=config,
        environment={"ROLLOG_ROLLOUT__CAPACITY": "4", "ROLLOG_ROLLOUT__NUM_THREADS": "4"},
    )

    rollout = settings.rollout
    assert (rollout.capacity, rollout.num_threads, rollout.load_attempts) == (5, 4, 3)


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
    with pytest.raises(
        RunExists, match=r"'first' exists already.*go on with it.*rollog watch --run first.*runs delete first"
    ):
        create_run(a_broker_with("first"), settings_named("first"))


def test_a_missing_run_is_created_and_the_same_one_is_taken_as_it_is() -> None:
    broker = MemoryBroker()

    created, is_new = create_run_if_missing(broker, settings_named("first"))
    found, is_new_again = create_run_if_missing(broker, settings_named("first"))

    assert (is_new, is_new_again) == (True, False)
    assert found == created


def test_another_configuration_under_a_taken_name_is_told_key_by_key() -> None:
    broker = a_broker_with("first")
    wanted = settings_named("first").changed(groups={"group_size": 8}, run={"seed": 3})

    with pytest.raises(ConfigError, match="another configuration") as caught:
        create_run_if_missing(broker, wanted)

    assert "groups.group_size = 4 there, 8 here; run.seed = 0 there, 3 here. A run" in str(caught.value)


def test_a_run_made_on_another_machine_is_the_same_run() -> None:
    broker = MemoryBroker()
    create_run(broker, settings_named("first").changed(trainer={"num_threads": 8}))
    here = settings_named("first").changed(
        trainer={"num_threads": 2},
        weights={"uri": "file:///elsewhere"},
        rollout={"capacity": 4},
        broker={"bootstrap_servers": "inside:2"},
    )

    existing, is_new = create_run_if_missing(broker, here)
    assert not is_new
    assert Settings.from_manifest(existing.config_json).trainer.num_threads == 8

    with pytest.raises(ConfigError, match="another configuration") as caught:
        create_run_if_missing(broker, here.changed(run={"seed": 3}))
    assert "run.seed = 0 there, 3 here. A run" in str(caught.value)
    assert "num_threads" not in str(caught.value)


def test_a_run_whose_topics_are_gone_is_not_made_again() -> None:
    broker = a_broker_with("first")
    with broker.admin() as admin:
        admin.delete_topics(["rollog.first.steps"])

    with pytest.raises(TopicMismatch, match=r"rollog\.first\.steps does not exist"):
        create_run_if_missing(broker, settings_named("first"))


def test_each_role_gets_its_sections() -> None:
    broker = a_broker_with("first")
    settings = resolved(broker)
    manifest = create_run(broker, settings_named("second"))

    dispatcher = dispatcher_settings(settings, Path("/state"))
    worker = rollout_settings(settings, manifest, Path("/state"), "box")
    trainer = trainer_settings(settings, manifest, Path("/state"))

    assert (dispatcher.run, dispatcher.groups) == ("first", settings.groups)
    assert dispatcher.snapshot == Path("/state/runs/first/dispatcher-snapshot.json")
    assert (worker.name, worker.weights_uri) == ("box", "file:///weights")
    assert (trainer.weights_uri, trainer.manifest_json) == ("file:///weights", manifest.config_json)


def test_the_manifest_knows_the_partitions_of_every_topic() -> None:
    manifest = create_run(MemoryBroker(), settings_named("first"))

    assert manifest.partitions["tasks"] == settings_named("first").broker.max_workers
    assert manifest.partitions["dead-letters"] == 1
    assert "rollog.runs" not in manifest.partitions


def test_a_role_resolves_nothing_but_what_counts_on_its_machine(tmp_path: Path) -> None:
    config = tmp_path / "run.toml"
    config.write_text("[groups]\ngroup_size = 99\n[broker]\nconnect_timeout_seconds = 3.0\n")
    environment = {"ROLLOG_RUN__PREFIX": "other", "ROLLOG_FRESHNESS__ALPHA": "2"}

    assert local_layers(None, {}, ()).by_key() == {}
    assert local_layers(config, environment, ("rollout.capacity=3",)).by_key() == {
        "broker.connect_timeout_seconds": 3.0,
        "run.prefix": "other",
        "rollout.capacity": 3,
    }


@pytest.mark.parametrize(
    ("environment", "assignment", "message"),
    [
        ({}, "groups.group_sise=4", r"groups\.group_sise \(--set.*did you mean 'group_size'"),
        ({}, "rollout.capacity=many", r"rollout\.capacity = 'many' \(--set"),
        ({}, "groups.group_size=many", r"groups\.group_size = 'many' \(--set"),
        ({"ROLLOG_ROLLOUT__CAPACITI": "4"}, None, r"ROLLOG_ROLLOUT__CAPACITI\) is not known"),
        ({"ROLLOG_GROUPS__GROUP_SIZE": "x"}, None, r"groups\.group_size = 'x' \(environment variable"),
    ],
)
def test_what_fits_no_key_is_named_on_every_machine(
    environment: dict[str, str], assignment: str | None, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        local_layers(None, environment, () if assignment is None else (assignment,))


def test_the_limits_of_a_run_are_learnt_without_a_second_connection() -> None:
    broker = KafkaBroker("nowhere.invalid:9092", connect_timeout_seconds=0.1)

    sized = broker.with_limits(connect_timeout_seconds=60.0, max_record_bytes=1 << 20)

    assert sized.address == broker.address


def test_a_value_of_the_file_that_the_manifest_overrules_must_still_fit_its_key(tmp_path: Path) -> None:
    config = tmp_path / "run.toml"
    config.write_text("[groups]\ngroup_size = -3\n")

    with pytest.raises(ConfigError, match=r"groups\.group_size = -3 \(.*run\.toml\)"):
        local_layers(config, {}, ())


def test_a_run_from_before_a_setting_existed_has_its_default() -> None:
    broker = MemoryBroker()
    manifest = manifest_of(settings_named("first"))
    older = json.loads(manifest.config_json)
    del older["sampling"]["stop"]
    text = json.dumps(older)
    with broker.admin() as admin:
        ensure_topics(admin, topic_specs(RunTopics("rollog", "first"), settings_named("first").broker))
    register_run(broker, replace(manifest, config_json=text, config_sha256=config_sha256(text)))

    assert create_run_if_missing(broker, settings_named("first"))[1] is False
    with pytest.raises(ConfigError, match=r"sampling\.stop = \[\] there, \['END'\] here"):
        create_run_if_missing(broker, settings_named("first").changed(sampling={"stop": ("END",)}))
