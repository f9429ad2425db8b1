"""A trainer's snapshot: what it saves reading, and that a start with it is the start without."""

from __future__ import annotations

import json
from collections import Counter
from threading import Event
from typing import TYPE_CHECKING

import pytest
from support.small_training import FakeRun, a_group, trainer_settings, turn_until_version

from rollog.kernel.broker.memory import MemoryBroker
from rollog.kernel.metrics import Metrics
from rollog.kernel.snapshot_file import SnapshotFile
from rollog.settings.training import TrainerConfig
from schemas import Disposition, TrainerEpoch
from trainer.engines.simulated import SimulatedTrainingEngine
from trainer.log_readers import LogReaders
from trainer.snapshot import TrainerSnapshot
from trainer.startup import start_trainer

if TYPE_CHECKING:
    from pathlib import Path

    from rollog.kernel.broker.memory_readers import MemoryConsumer
    from rollog.kernel.broker.ports import Record
    from rollog.kernel.broker.topics import RunTopics
    from trainer.loop import Trainer
    from trainer.settings import TrainerSettings


class CountingBroker(MemoryBroker):
    """Notes how many records of each topic were read."""

    def __init__(self) -> None:
        super().__init__()
        self.num_read: Counter[str] = Counter()

    def consumer(self, *, client_id: str, group_id: str | None = None) -> MemoryConsumer:
        consumer = super().consumer(client_id=client_id, group_id=group_id)
        poll = consumer.poll
        if client_id.startswith(("trainer", "ledger")):
            consumer.poll = lambda *args, **named: self._noted(poll(*args, **named))  # type: ignore[method-assign]
        return consumer

    def _noted(self, records: list[Record]) -> list[Record]:
        self.num_read.update(record.topic.rsplit(".", 1)[-1] for record in records)
        return records


@pytest.fixture
def broker() -> CountingBroker:
    return CountingBroker()


@pytest.fixture
def settings(tmp_path: Path, run_topics: RunTopics) -> TrainerSettings:
    config = TrainerConfig(checkpoint_every_steps=1, verdicts_interval_seconds=0.0)
    return trainer_settings(tmp_path, run_topics, "simulated", trainer=config)


@pytest.fixture
def run(broker: CountingBroker, run_topics: RunTopics) -> FakeRun:
    fake = FakeRun(broker, run_topics)
    fake.create_topics()
    return fake


def a_trainer(run: FakeRun, settings: TrainerSettings) -> Trainer:
    return start_trainer(settings, run.broker, Metrics(), SimulatedTrainingEngine())


def train(run: FakeRun, settings: TrainerSettings, *versions: int) -> None:
    """Steps to these versions by a trainer that then leaves in order."""
    with a_trainer(run, settings) as trainer:
        for version in versions:
            weights = trainer.ledger.weights[version - 1]
            for group in (2 * version - 2, 2 * version - 1):
                run.send(*a_group(group, weights_sha256=weights, version=version - 1))
            turn_until_version(trainer, version)
        stop = Event()
        stop.set()
        trainer.run(stop)


def test_a_start_reads_nothing_that_is_below_the_positions_of_the_snapshot(
    run: FakeRun, broker: CountingBroker, settings: TrainerSettings
) -> None:
    train(run, settings, 1, 2)
    broker.num_read.clear()
    with a_trainer(run, settings) as trainer:
        trainer.run_once()
        assert trainer.ledger.version == 2
    # The last record, which shows whose log it is.
    assert broker.num_read["steps"] == 1
    assert broker.num_read["tasks"] == 0
    assert broker.num_read["samples"] == 0


def test_training_goes_on_as_without_one(run: FakeRun, settings: TrainerSettings) -> None:
    train(run, settings, 1, 2)
    train(run, settings, 3)
    trained = [
        verdict.sample_id
        for record in run.ledger()
        for verdict in record.verdicts
        if verdict.disposition is Disposition.TRAINED
    ]
    assert len(trained) == len(set(trained))
    ledgers = []
    for _ in range(2):
        with a_trainer(run, settings) as trainer:
            ledgers.append(trainer.ledger)
        settings.snapshot.unlink(missing_ok=True)
    assert ledgers[0] == ledgers[1]
    assert ledgers[0].version == 3


def test_steps_behind_a_checkpoint_are_redone_by_their_places(
    run: FakeRun, settings: TrainerSettings
) -> None:
    train(run, settings, 1, 2)
    for directory in settings.checkpoints.iterdir():
        (directory / "manifest.json").unlink()
    with a_trainer(run, settings) as trainer:
        assert trainer.ledger.version == 2


@pytest.mark.parametrize("key", ["end", "first", "positions", "settings", "issued"])
def test_a_snapshot_that_says_something_else_is_ignored(
    key: str, run: FakeRun, settings: TrainerSettings, caplog: pytest.LogCaptureFixture
) -> None:
    train(run, settings, 1)
    data = settings.snapshot.read_bytes()
    plain = json.loads(data.partition(b"\n")[2])
    others = {
        "end": 10**6,
        "first": "AAAA",
        "positions": [[topic, number, 10**6] for topic, number, _ in plain["positions"]],
        "settings": "others",
        "issued": {"tasks": [[]], "fences": []},
    }
    write_snapshot(settings.snapshot, plain | {key: others[key]})
    with a_trainer(run, settings) as trainer:
        assert trainer.ledger.version == 1
    assert "snapshot ignored" in caplog.text


def write_snapshot(path: Path, plain: dict[str, object]) -> None:
    """A snapshot that is whole, of this content."""
    SnapshotFile(path, "trainer").write(plain, 0.0)


def test_a_directory_that_cannot_be_written_is_a_warning(
    run: FakeRun, settings: TrainerSettings, caplog: pytest.LogCaptureFixture
) -> None:
    settings.snapshot.mkdir(parents=True)
    train(run, settings, 1)
    assert "snapshot not written" in caplog.text


def test_tasks_of_groups_that_closed_after_the_snapshot_are_forgotten(
    run: FakeRun, settings: TrainerSettings
) -> None:
    with a_trainer(run, settings) as trainer:
        run.send(*a_group(0, weights_sha256=trainer.ledger.weights[0]))
        for _ in range(5):
            trainer.run_once()
        stop = Event()
        stop.set()
        trainer.run(stop)
        snapshot = settings.snapshot.read_bytes()
        run.send(*a_group(1, weights_sha256=trainer.ledger.weights[0]))
        turn_until_version(trainer, 1)
    settings.snapshot.write_bytes(snapshot)
    assert json.loads(snapshot.partition(b"\n")[2])["issued"]["tasks"]
    history, known = TrainerSnapshot(settings).read(run.broker)
    history.read_on(run.broker, run.topics)
    readers = LogReaders(settings=settings, broker=run.broker, topics=run.topics, ledger=history.state)
    with readers.control(TrainerEpoch(epoch=9, trainer_id="next"), known) as control:
        assert control.ordered_groups == []
