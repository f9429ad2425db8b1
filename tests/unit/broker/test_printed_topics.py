"""Topics as an administrator makes them."""

from __future__ import annotations

import json
import shlex
from typing import TYPE_CHECKING

import yaml
from click.testing import CliRunner

from rollog.cli.main import cli
from rollog.kernel.broker.acls import Cluster
from rollog.kernel.broker.ports import TopicSpec
from rollog.kernel.broker.printed_topics import kafka_topics, kafka_topics_commands, topics_json
from rollog.kernel.broker.topics import RunTopics, topic_specs
from rollog.settings.run import BrokerConfig

if TYPE_CHECKING:
    from pathlib import Path

specs = topic_specs(RunTopics("rollog", "first"), BrokerConfig(replication_factor=3, min_insync_replicas=2))


def spec_of(command: str) -> TopicSpec:
    """The topic that a kafka-topics command makes."""
    words = shlex.split(command)
    assert words[:5] == ["kafka-topics", "--bootstrap-server", "k:9092", "--create", "--if-not-exists"]
    options = list(zip(words[5::2], words[6::2], strict=True))
    single = dict(options)
    return TopicSpec(
        name=single["--topic"],
        num_partitions=int(single["--partitions"]),
        replication_factor=int(single["--replication-factor"]),
        config=dict(value.split("=", 1) for name, value in options if name == "--config"),
    )


def test_each_format_says_all_of_a_topic() -> None:
    commands = kafka_topics_commands(specs, Cluster(bootstrap_servers="k:9092"))
    assert [spec_of(command) for command in commands] == specs
    plain = json.loads(topics_json(specs))
    assert [
        TopicSpec(
            name=each["name"],
            num_partitions=each["partitions"],
            replication_factor=each["replication_factor"],
            config=each["config"],
        )
        for each in plain
    ] == specs


def test_a_kafka_topic_has_the_fields_of_strimzis_resource() -> None:
    resources = list(yaml.safe_load_all(kafka_topics(specs, cluster="my-cluster")))
    for resource, spec in zip(resources, specs, strict=True):
        assert resource == {
            "apiVersion": "kafka.strimzi.io/v1beta2",
            "kind": "KafkaTopic",
            "metadata": {"name": spec.name, "labels": {"strimzi.io/cluster": "my-cluster"}},
            "spec": {
                "topicName": spec.name,
                "partitions": spec.num_partitions,
                "replicas": spec.replication_factor,
                "config": dict(spec.config),
            },
        }


def test_a_topic_whose_name_kubernetes_refuses_is_an_object_of_another_name() -> None:
    strange = topic_specs(RunTopics("rollog", "-first-"), BrokerConfig())
    resources = list(yaml.safe_load_all(kafka_topics(strange, cluster="c")))
    names = [resource["metadata"]["name"] for resource in resources]
    assert len(set(names)) == len(strange)
    assert all(name.startswith("topic-") for name in names[:-1])
    assert names[-1] == "rollog.runs"
    assert [resource["spec"]["topicName"] for resource in resources] == [spec.name for spec in strange]


def run_cli(*words: str) -> tuple[int, str]:
    result = CliRunner().invoke(cli, list(words))
    return result.exit_code, result.output + str(result.exception or "")


def test_the_command_prints_rights_for_each_principal() -> None:
    status, printed = run_cli(
        *("topics", "acls", "--run", "first", "--broker", "k:9092"),
        *("--principal", "worker=User:w", "--principal", "trainer=User:CN=t,O=x"),
    )
    assert status == 0
    lines = printed.splitlines()
    assert all(shlex.split(line)[0] == "kafka-acls" for line in lines)
    assert {shlex.split(line)[5] for line in lines} == {"User:w", "User:CN=t,O=x"}


def test_the_command_names_what_it_cannot_print(tmp_path: Path) -> None:
    for words, told in (
        (("acls", "--run", "first"), "--principal"),
        (("acls", "--run", "first", "--principal", "boss=User:b"), "ROLE is one of"),
        (("acls", "--principal", "worker=User:b"), "run"),
        (("acls", "--prefix", "rollog", "--principal", "worker=User:b"), "name the run with --run"),
        (("acls", "--prefix", "A.b", "--principal", "reader=User:b"), "malformed"),
        (("acls", "--run", "x", "--prefix", "rollog", "--principal", "reader=User:b"), "name one run"),
        (("acls", "--run", "x", "--format", "json", "--remove", "--principal", "reader=User:b"), "--remove"),
        (("acls", "--run", "x", "--format", "strimzi", "--principal", "reader=User:b"), "--cluster"),
        (("print", "--run", "x", "--format", "strimzi"), "--cluster"),
    ):
        status, printed = run_cli("topics", *words, "--home", str(tmp_path))
        assert status != 0, words
        assert told in printed, printed


def test_the_rights_of_a_run_include_what_its_settings_ask_for() -> None:
    words = ("topics", "acls", "--run", "first", "--principal", "trainer=User:t", "--format", "json")
    assert "rollog.first.rewards" not in run_cli(*words)[1]
    assert "rollog.first.rewards" in run_cli(*words, "--set", "reward.late=true")[1]
