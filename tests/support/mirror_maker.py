"""MirrorMaker 2 itself, between two brokers of a test."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from rollog.kernel.broker.reading import read_to_end
from support.kafka_jars import jars_of
from support.kafka_lines import JavaProgram
from support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from rollog.kernel.broker.kafka import KafkaBroker
    from rollog.kernel.broker.ports import Broker, TopicPartition

alias = "source"
mirror_seconds = 180.0
_names = {
    "default": "org.apache.kafka.connect.mirror.DefaultReplicationPolicy",
    "identity": "org.apache.kafka.connect.mirror.IdentityReplicationPolicy",
}


def mirror_properties(
    source: str, target: str, topics: str, policy: str, isolation: str = "read_committed"
) -> str:
    """One flow from `source` to `target` of the topics that an expression names."""
    settings = {
        "clusters": f"{alias}, target",
        f"{alias}.bootstrap.servers": source,
        "target.bootstrap.servers": target,
        f"{alias}->target.enabled": "true",
        f"{alias}->target.topics": topics,
        "target->source.enabled": "false",
        "replication.policy.class": _names[policy],
        "replication.factor": "1",
        "checkpoints.topic.replication.factor": "1",
        "heartbeats.topic.replication.factor": "1",
        "offset-syncs.topic.replication.factor": "1",
        "offset.storage.replication.factor": "1",
        "status.storage.replication.factor": "1",
        "config.storage.replication.factor": "1",
        "emit.heartbeats.enabled": "false",
        "emit.checkpoints.enabled": "false",
        "sync.topic.acls.enabled": "false",
        "refresh.topics.interval.seconds": "2",
        # By default aborted records are mirrored, too.
        f"{alias}.consumer.isolation.level": isolation,
        f"{alias}.consumer.auto.offset.reset": "earliest",
        "target.producer.max.request.size": str(16 << 20),
    }
    return "".join(f"{name} = {value}\n" for name, value in settings.items())


@contextmanager
def mirror_maker(
    java: Path, cache_directory: Path, directory: Path, properties: str
) -> Iterator[JavaProgram]:
    """The program, for as long as the block lasts."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / "mirror.properties"
    path.write_text(properties)
    jars = jars_of("mirror-4.3.1", cache_directory)
    program = JavaProgram(
        java, jars, ["org.apache.kafka.connect.mirror.MirrorMaker", str(path)], directory / "mirror.log"
    )
    try:
        yield program
    finally:
        program.end()


def wait_for_mirror(program: JavaProgram, source: Broker, target: Broker, names: dict[str, str]) -> None:
    """Until each topic of `source` has as many records under its name in `target`."""
    wanted = {name: num_records(source, topic) for topic, name in names.items()}

    def is_there() -> bool:
        program.check_alive()
        with target.admin() as admin:
            missing = wanted.keys() - admin.list_topics()
        # A topic may be seen before its leader is: it is asked for once it is listed.
        return not missing and all(num_records(target, name) >= count for name, count in wanted.items())

    try:
        wait_until(is_there, mirror_seconds, "the mirror to be whole")
    except AssertionError as error:
        raise AssertionError(f"{error}\n{program.tail()}") from error


def num_records(broker: Broker, topic: str) -> int:
    """What a reader of committed records sees of a topic."""
    with broker.admin() as admin:
        num_partitions = admin.describe_topics([topic])[topic].num_partitions
    with broker.consumer(client_id="counting") as consumer:
        return sum(1 for _ in read_to_end(consumer, topic, *range(num_partitions)))


def abort_some(broker: KafkaBroker, *places: TopicPartition) -> None:
    """A transaction that leaves aborted records and a marker in each partition."""
    topics = sorted({place.topic for place in places})
    with broker.transactional_producer("rollog-test.aborted", topics=topics) as producer:
        producer.begin()
        for place in places:
            producer.send(place.topic, place.partition, b"aborted").offset(20)
        producer.abort()
