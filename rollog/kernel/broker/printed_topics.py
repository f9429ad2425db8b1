"""The topics of a run as an administrator makes them: kafka-topics commands, Strimzi's KafkaTopic, plain data."""

from __future__ import annotations

import json
import shlex
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from rollog.kernel.broker.yaml_text import is_kubernetes_name, yaml_documents

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rollog.kernel.broker.acls import Cluster
    from rollog.kernel.broker.ports import TopicSpec

topic_api = "kafka.strimzi.io/v1beta2"


def plain_lines(specs: Iterable[TopicSpec]) -> list[str]:
    """One line for each topic, to be read."""
    return [
        f"{spec.name} partitions={spec.num_partitions} replicas={spec.replication_factor} "
        + " ".join(f"{key}={value}" for key, value in sorted(spec.config.items()))
        for spec in specs
    ]


def kafka_topics_commands(specs: Iterable[TopicSpec], cluster: Cluster) -> list[str]:
    """A shell command for each topic, which leaves one alone that is there."""
    return [
        shlex.join(
            [
                *("kafka-topics", *cluster.words, "--create", "--if-not-exists"),
                *("--topic", spec.name, "--partitions", str(spec.num_partitions)),
                *("--replication-factor", str(spec.replication_factor)),
                *(
                    word
                    for key, value in sorted(spec.config.items())
                    for word in ("--config", f"{key}={value}")
                ),
            ]
        )
        for spec in specs
    ]


def topics_json(specs: Iterable[TopicSpec]) -> str:
    """A list with an object for each topic, by Kafka's names: what providers of Terraform ask for."""
    return json.dumps(
        [
            {
                "name": spec.name,
                "partitions": spec.num_partitions,
                "replication_factor": spec.replication_factor,
                "config": dict(sorted(spec.config.items())),
            }
            for spec in specs
        ],
        indent=2,
    )


def kafka_topics(specs: Iterable[TopicSpec], *, cluster: str) -> str:
    """A KafkaTopic of Strimzi's for each topic, as YAML; `cluster` is the name of the Kafka resource."""
    return yaml_documents(_kafka_topic(spec, cluster) for spec in specs)


def _kafka_topic(spec: TopicSpec, cluster: str) -> dict[str, Any]:
    return {
        "apiVersion": topic_api,
        "kind": "KafkaTopic",
        "metadata": {"name": _object_name(spec.name), "labels": {"strimzi.io/cluster": cluster}},
        "spec": {
            "topicName": spec.name,
            "partitions": spec.num_partitions,
            "replicas": spec.replication_factor,
            "config": dict(sorted(spec.config.items())),
        },
    }


def _object_name(topic: str) -> str:
    """The topic's own name where Kubernetes takes it: a prefix or run may begin or end with a hyphen."""
    return topic if is_kubernetes_name(topic) else f"topic-{sha256(topic.encode()).hexdigest()[:32]}"
