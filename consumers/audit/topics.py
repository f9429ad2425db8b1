"""The topics of a run as an audit reads them: up to ends fetched once, with what retention has taken already.

The end of `steps` is fetched first, so that whatever a ledger record names was there when the other ends were; read
again last, it is behind everything that the other topics name of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from consumers.audit.findings import Missing
from rollog.kernel.broker.ports import TopicPartition
from rollog.kernel.broker.reading import read_until
from rollog.kernel.errors import TopicMismatch

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from rollog.kernel.broker.ports import Broker, Consumer, Record
    from rollog.kernel.broker.topics import RunTopics


class StoredTopics:
    """What is stored of a run. Raises TopicMismatch where it has no `steps` or no `samples`."""

    def __init__(self, broker: Broker, consumer: Consumer, topics: RunTopics) -> None:
        self._consumer = consumer
        ordered = [
            topics.steps,
            topics.samples,
            topics.rewards,
            topics.turns,
            topics.weights,
            topics.evaluations,
            topics.workers,
            topics.dead_letters,
            topics.tasks,
            topics.control,
        ]
        with broker.admin() as admin:
            specs = admin.describe_topics(ordered)
        for name in (topics.steps, topics.samples):
            if name not in specs:
                raise TopicMismatch(
                    f"topic {name} does not exist at {broker.address}: there is nothing to audit; check the run's name "
                    "and the address"
                )
        self.absent = [name for name in ordered if name not in specs]
        partitions = {
            name: [TopicPartition(name, index) for index in range(specs[name].num_partitions)]
            for name in ordered
            if name in specs
        }
        self.ends = {name: consumer.end_offsets(of_topic) for name, of_topic in partitions.items()}
        self.begins = {name: consumer.beginning_offsets(of_topic) for name, of_topic in partitions.items()}

    def num_partitions(self, topic: str) -> int:
        """Partitions of a topic that exists."""
        return len(self.ends[topic])

    def read(self, topic: str) -> Iterator[Record]:
        """Everything between beginning and end; nothing of a topic that does not exist."""
        if topic in self.ends:
            yield from read_until(self._consumer, self.begins[topic], self.ends[topic])

    def read_later(self, topic: str, partition: int, begin: int) -> tuple[list[Record], int]:
        """What stands behind `begin` by now in one partition, and its end."""
        place = TopicPartition(topic, partition)
        ends = self._consumer.end_offsets([place])
        return list(read_until(self._consumer, {place: begin}, ends)), ends[place]

    def cut(self, topic: str) -> dict[int, int]:
        """First offset still there, of each partition whose beginning retention has deleted."""
        begins: Mapping[TopicPartition, int] = self.begins.get(topic, {})
        return {partition.partition: begin for partition, begin in begins.items() if begin > 0}

    def is_cut(self, topic: str) -> bool:
        """Whether anything of a topic may be missing."""
        return bool(self.cut(topic)) or topic in self.absent

    def missing(self, topic: str, consequence: str) -> Iterator[Missing]:
        """What is missing of a topic, and what follows."""
        if topic in self.absent:
            yield Missing(what=f"topic {topic}", consequence=consequence)
        for partition, begin in self.cut(topic).items():
            yield Missing(
                what=f"{topic}, partition {partition}, offsets 0 to {begin - 1}", consequence=consequence
            )
