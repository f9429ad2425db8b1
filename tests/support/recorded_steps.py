"""Recorded runs for tests of redo and replay: read back as they are, or with one ledger record altered."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING

from consumers.ledger import read_ledger
from rollog.kernel.broker.memory import MemoryBroker
from rollog.kernel.broker.reading import read_to_end
from rollog.kernel.broker.topics import RunTopics, topic_specs
from rollog.kernel.weights import WeightsStore
from rollog.rules.ledger_state import record_hash
from schemas.codec import encode
from trainer.checkpoints import CheckpointStore
from trainer.recorded.history import read_history
from trainer.recorded.redo import Recording, restore
from trainer.recorded.replay import replay_steps
from trainer.role import training_engine

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from rollog.kernel.broker.ports import Broker
    from schemas import LedgerRecord
    from trainer.recorded.replay import ReplayedStep
    from trainer.settings import TrainerSettings


def recording_of(broker: Broker, settings: TrainerSettings, downloads: Path) -> Recording:
    """The run of these settings as `broker` has it."""
    topics = RunTopics(settings.prefix, settings.run)
    return Recording(
        broker=broker,
        topics=topics,
        store=WeightsStore(settings.weights_uri),
        downloads=downloads,
        settings=settings,
        history=read_history(broker, topics),
    )


def replayed(recording: Recording, begin: int, end: int) -> tuple[str | None, list[ReplayedStep]]:
    """Replay with the real engine; returns the name of the checkpoint it began with, and the steps."""
    checkpoints = CheckpointStore(recording.settings.checkpoints).complete()
    with closing(training_engine(recording.settings)) as engine:
        checkpoint = restore(engine, recording, checkpoints, at_most=begin)
        first = 1 if checkpoint is None else checkpoint.version + 1
        steps = list(replay_steps(engine, recording, range(first, end + 1)))
    return None if checkpoint is None else checkpoint.name, steps


def altered_copy(
    broker: Broker, settings: TrainerSettings, alter: Callable[[LedgerRecord], LedgerRecord]
) -> MemoryBroker:
    """The run on a broker of its own, its ledger altered and chained anew from there on."""
    topics = RunTopics(settings.prefix, settings.run)
    copy = MemoryBroker()
    with copy.admin() as admin:
        admin.create_topics(topic_specs(topics, settings.broker))
    places = [(topics.weights, 0), *((topics.samples, n) for n in range(settings.broker.samples_partitions))]
    with broker.consumer(client_id="copy") as consumer, copy.producer(client_id="copy") as producer:
        for topic, partition in places:
            for record in read_to_end(consumer, topic, partition):
                producer.send(topic, partition, record.value, key=record.key, headers=record.headers)
        head = bytes(32)
        for entry in read_ledger(broker, topics):
            value = encode(replace(alter(entry.record), previous_hash=head))
            producer.send(topics.steps, 0, value)
            head = record_hash(value)
        producer.flush(10.0)
    return copy
