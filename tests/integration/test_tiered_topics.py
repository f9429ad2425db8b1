"""A run whose topics are tiered (KIP-405): what has left the disk is audited and trained again all the same."""

from __future__ import annotations

from typing import TYPE_CHECKING

import kafka
import pytest
from kafka.admin import ConfigResource, ConfigResourceType
from support.broker_suite import told
from support.kafka_jars import jars_of
from support.kafka_lines import KafkaNode, java_for, kafka_jars, lines
from support.mirror_maker import abort_some
from support.threaded_run import small_settings, whole_run
from support.waiting import wait_until

from rollog.kernel.broker.kafka import KafkaBroker
from rollog.kernel.broker.ports import TopicPartition
from rollog.kernel.broker.topics import run_topic_names, runs_topic

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from rollog.kernel.broker.topics import RunTopics

pytestmark = [pytest.mark.slow, pytest.mark.broker, pytest.mark.engine, pytest.mark.timeout(900)]

run_name = "tiered"
moved_seconds = 120.0
tiered_config = {
    "remote.storage.enable": "true",
    "local.retention.ms": "1",
    # A segment is closed by the first record that comes this much later, and leaves the disk soon after.
    "segment.ms": "200",
}


def remote_tier(directory: Path) -> dict[str, str]:
    """Kafka's own remote storage for tests, which keeps segments in another directory."""
    return {
        "remote.log.storage.system.enable": "true",
        "remote.log.storage.manager.class.name": "org.apache.kafka.server.log.remote.storage.LocalTieredStorage",
        "remote.log.storage.manager.impl.prefix": "rsm.config.",
        "rsm.config.dir": str(directory),
        "remote.log.metadata.manager.listener.name": "PLAINTEXT",
        "rlmm.config.remote.log.metadata.topic.replication.factor": "1",
        "rlmm.config.remote.log.metadata.topic.num.partitions": "1",
        "remote.log.manager.task.interval.ms": "500",
        "log.retention.check.interval.ms": "500",
        "log.initial.task.delay.ms": "500",
    }


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory, cache_directory: Path) -> Iterator[KafkaNode]:
    newest = lines[-1]
    directory = tmp_path_factory.mktemp("tiered")
    jars = [*kafka_jars(newest, cache_directory), *jars_of("tiered-4.3.1", cache_directory)]
    with KafkaNode(java_for(newest), jars, directory, remote_tier(directory / "remote")) as kafka_node:
        yield kafka_node


def make_tiered(address: str, names: Sequence[str]) -> dict[str, str]:
    """What the broker says to each topic's being tiered: OK, or why not."""
    resources = [ConfigResource(ConfigResourceType.TOPIC, name, configs=tiered_config) for name in names]
    with kafka.KafkaAdminClient(bootstrap_servers=address) as client:
        said: dict[str, str] = client.alter_configs(resources)["topic"]
    return said


def tierable(topics: RunTopics) -> list[str]:
    """All but what is compacted."""
    return [name for name in run_topic_names(topics) if name != topics.workers]


def first_on_disk(directory: Path, place: TopicPartition) -> int:
    """The first offset of a partition that the broker still has on its own disk."""
    logs = (directory / "kafka" / f"{place.topic}-{place.partition}").glob("*.log")
    return min((int(path.stem) for path in logs), default=0)


def tier_segments(node: KafkaNode, topic: str) -> set[Path]:
    """Segments of a topic in the remote tier."""
    return {path for path in (node.directory / "remote").rglob("*.log") if f"{topic}-" in path.parent.name}


def test_a_tiered_run_is_audited_and_trained_again(node: KafkaNode, tmp_path: Path) -> None:
    broker = KafkaBroker(node.address)
    settings = small_settings(tmp_path, run_name, trainer={"engine": "torch"})
    with whole_run(broker, tmp_path, settings) as run:
        topics = run.topics
        said_to = make_tiered(node.address, tierable(topics))
        assert set(said_to.values()) == {"OK"}, said_to
        abort_some(broker, TopicPartition(topics.samples, 0), TopicPartition(topics.tasks, 0))
        run.to_its_end()
        run.audited()
    for topic in (topics.steps, topics.samples):
        wait_until(
            lambda topic=topic: first_on_disk(node.directory, TopicPartition(topic, 0)) > 0,  # type: ignore[misc]
            moved_seconds,
            f"segments of {topic} to leave the disk",
        )
    assert list((node.directory / "remote").rglob("*.log")), "nothing is in the remote tier"
    where = ["--broker", node.address, "--set", f"run.prefix={topics.prefix}"]
    status, said = told("audit", run_name, *where, home=tmp_path)
    assert status == 0, said
    status, said = told("replay", run_name, *where, home=tmp_path)
    assert status == 0, said
    assert "EQUAL: 3 step(s)" in said
    check_pruning_reaches_the_tier(node, topics, where, tmp_path)


def check_pruning_reaches_the_tier(node: KafkaNode, topics: RunTopics, where: list[str], home: Path) -> None:
    """What `rollog topics prune` deletes leaves the tier, too; what is left is audited."""
    first = {path for path in tier_segments(node, topics.samples) if int(path.name.split("-")[0]) == 0}
    assert first, "the first samples are not in the tier"
    status, said = told("topics", "prune", run_name, "--keep-steps", "1", *where, home=home)
    assert status == 0, said
    wait_until(
        lambda: not first & tier_segments(node, topics.samples),
        moved_seconds,
        "the first samples to leave the tier",
    )
    status, said = told("audit", run_name, *where, home=home)
    assert status == 0, said


def test_kafka_refuses_to_tier_what_is_compacted(node: KafkaNode, tmp_path: Path) -> None:
    broker = KafkaBroker(node.address)
    with whole_run(broker, tmp_path, small_settings(tmp_path, "compacted")) as run:
        compacted = [run.topics.workers, runs_topic(run.topics.prefix)]
        said_to = make_tiered(node.address, compacted)
    assert set(said_to) == set(compacted)
    for said in said_to.values():
        assert "InvalidConfigurationError: Remote log storage" in said
        assert "cleanup.policy=delete" in said
