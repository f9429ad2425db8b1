"""Who is refused says so before anybody else is fenced: the trainer or dispatcher that works goes on."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pytest
from support.dispatcher_driver import DispatcherDriver
from support.small_training import (
    FakeRun,
    NaiveEngine,
    a_group,
    trainer_settings,
    turn_until_version,
)

from producers.dispatcher.startup import TakeOver
from rollog.kernel.broker.ports import TopicPartition
from rollog.kernel.broker.reading import read_to_end
from rollog.kernel.errors import (
    ConfigError,
    DecodeError,
    EngineError,
    Expired,
    LedgerError,
    RollogError,
    TopicMismatch,
    WeightsError,
)
from rollog.kernel.metrics import Metrics
from rollog.settings.training import TrainerConfig
from schemas import DispatcherEpoch
from schemas.codec import decode
from trainer.startup import start_trainer

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from rollog.kernel.broker.topics import RunTopics
    from rollog.kernel.versions.tensors import TensorSink, TensorSpec
    from trainer.loop import Trainer
    from trainer.settings import TrainerSettings


@pytest.fixture
def settings(tmp_path: Path, run_topics: RunTopics, model_path: str) -> TrainerSettings:
    config = TrainerConfig(checkpoint_every_steps=10, verdicts_interval_seconds=0.0)
    return trainer_settings(tmp_path, run_topics, model_path, trainer=config)


def a_trainer(settings: TrainerSettings, run: FakeRun, **changes: Any) -> Trainer:
    engine = NaiveEngine(optimizer=settings.optimizer, num_optimizer_steps=6)
    return start_trainer(settings, run.broker, Metrics(), engine, **changes)


def train(run: FakeRun, trainer: Trainer, version: int) -> None:
    for group in (2 * version - 2, 2 * version - 1):
        run.send(*a_group(group, weights_sha256=trainer.ledger.weights[version - 1], version=version - 1))
    turn_until_version(trainer, version)


def with_partitions(settings: TrainerSettings) -> TrainerSettings:
    return replace(settings, broker=settings.broker.model_copy(update={"samples_partitions": 3}))


def on_a_machine_that_rounds_otherwise(settings: TrainerSettings) -> TrainerSettings:
    return replace(settings, optimizer=settings.optimizer.model_copy(update={"epsilon": 1e-6}))


def without_the_model(settings: TrainerSettings) -> TrainerSettings:
    return replace(settings, model=settings.model.model_copy(update={"path": None}))


def as_it_is(settings: TrainerSettings) -> TrainerSettings:
    return settings


def without_version_0(settings: TrainerSettings) -> TrainerSettings:
    shutil.rmtree(settings.weights_uri)
    return settings


def with_a_checkpoint_of_another_run(settings: TrainerSettings) -> TrainerSettings:
    directory = settings.checkpoints / "step-000009"
    directory.mkdir(parents=True)
    (directory / "manifest.json").write_text(
        f'{{"version": 9, "weights_sha256": "{"f" * 64}", "files": {{}}}}'
    )
    return settings


@pytest.mark.parametrize(
    ("changed", "amendment", "error", "words"),
    [
        (with_partitions, {}, LedgerError, "counts 2 samples partitions"),
        (as_it_is, {"groups.group_size": 7}, ConfigError, "groups.group_size"),
        (as_it_is, {"optimizer.learning_rate": -1.0}, ConfigError, "learning_rate"),
        (as_it_is, {"run.num_steps": 1}, ConfigError, "version 1 is made already"),
        (without_the_model, {}, ConfigError, "model.path is not set"),
        (without_version_0, {}, WeightsError, "v000000-"),
        (on_a_machine_that_rounds_otherwise, {}, EngineError, "redoing the step of version 1"),
        (with_a_checkpoint_of_another_run, {}, LedgerError, "step-000009 is ahead"),
    ],
)
def test_a_trainer_that_is_refused_leaves_the_one_at_work_alone(
    run: FakeRun,
    settings: TrainerSettings,
    *,
    changed: Any,
    amendment: Mapping[str, object],
    error: type[RollogError],
    words: str,
) -> None:
    with a_trainer(settings, run) as at_work:
        train(run, at_work, 1)
        with pytest.raises(error, match=words):
            a_trainer(changed(settings), run, amendment=amendment)
        train(run, at_work, 2)
    assert [record.version for record in run.ledger()] == [0, 1, 2]


def test_a_trainer_whose_samples_are_gone_leaves_the_one_at_work_alone(
    run: FakeRun, settings: TrainerSettings
) -> None:
    with a_trainer(settings, run) as at_work:
        first = at_work.ledger.weights[0]
        run.send(*a_group(0, weights_sha256=first))
        at_work.run_once()
        with run.broker.admin() as admin:
            admin.delete_records({TopicPartition(run.topics.samples, 0): 1})
        with pytest.raises(TopicMismatch, match="no longer in the topic"):
            a_trainer(settings, run)
        run.send(*a_group(1, weights_sha256=first))
        turn_until_version(at_work, 1)


class Meanwhile(NaiveEngine):
    """An engine whose start takes so long that another trainer commits meanwhile."""

    def __init__(self, settings: TrainerSettings, meanwhile: Any) -> None:
        super().__init__(optimizer=settings.optimizer, num_optimizer_steps=6)
        self._meanwhile = meanwhile

    def start(self, model_path: str, weights_path: Path | None = None) -> None:
        super().start(model_path, weights_path)
        self._meanwhile()


def test_what_another_trainer_commits_while_this_one_prepares_is_redone(
    run: FakeRun, settings: TrainerSettings
) -> None:
    with a_trainer(settings, run) as at_work:
        train(run, at_work, 1)
        engine = Meanwhile(settings, lambda: train(run, at_work, 2))
        with start_trainer(settings, run.broker, Metrics(), engine) as successor:
            assert successor.ledger.version == 2
            train(run, successor, 3)
    with a_trainer(settings, run) as again:  # it redoes every step, so all weights are those of one history
        assert again.ledger.version == 3


def test_a_run_that_another_trainer_begins_meanwhile_is_taken_over(
    run: FakeRun, settings: TrainerSettings
) -> None:
    others: list[Trainer] = []

    def begin_and_train() -> None:
        others.append(a_trainer(settings, run))
        train(run, others[0], 1)

    engine = Meanwhile(settings, begin_and_train)
    with start_trainer(settings, run.broker, Metrics(), engine) as successor:
        assert successor.ledger.version == 1
        train(run, successor, 2)
    others[0].close()
    with a_trainer(settings, run) as again:  # it redoes every step, so all weights are those of one history
        assert again.ledger.version == 2


class MeanwhileFromOtherWeights(Meanwhile):
    def export_weights(self, sink: TensorSink | None) -> None:
        assert sink is not None
        super().export_weights(_Negated(sink))


@dataclass(frozen=True)
class _Negated:
    """Passes on what it takes, with the sign of the last element turned."""

    sink: TensorSink

    def begin(self, table: Sequence[TensorSpec]) -> None:
        self.sink.begin(table)

    def add(self, spec: TensorSpec, data: memoryview) -> None:
        turned = bytearray(data)
        turned[-1] ^= 0x80
        self.sink.add(spec, memoryview(turned))


def test_a_run_that_another_trainer_begins_meanwhile_from_other_weights_is_joined_at_the_next_start(
    run: FakeRun, settings: TrainerSettings
) -> None:
    others: list[Trainer] = []
    engine = MeanwhileFromOtherWeights(settings, lambda: others.append(a_trainer(settings, run)))
    with pytest.raises(Expired, match="began the run from other weights while this one was starting"):
        start_trainer(settings, run.broker, Metrics(), engine)
    with a_trainer(settings, run) as again:
        train(run, again, 1)
    others[0].close()


def a_take_over(driver: DispatcherDriver, **changes: Any) -> TakeOver:
    values: dict[str, Any] = {
        "settings": driver.settings,
        "broker": driver.broker,
        "metrics": Metrics(),
        "dispatcher_id": "refused",
        "prompts": driver.prompts,
        "held_out": driver.held_out,
    }
    return TakeOver(**(values | changes))


def with_broken_ledger(driver: DispatcherDriver) -> TakeOver:
    driver.lose_ledger_begin()
    return a_take_over(driver)


def with_a_flood_of_garbage(driver: DispatcherDriver) -> TakeOver:
    for _ in range(driver.settings.broker.max_dead_letters_in_a_row + 1):
        driver.producer.send(driver.topics.workers, 0, b"no heartbeat", key=b"someone")
        driver.producer.send(driver.topics.evaluations, 0, b"no evaluation")
    driver.producer.flush(1.0)
    return a_take_over(driver)


def with_more_partitions(driver: DispatcherDriver) -> TakeOver:
    broker = driver.settings.broker.model_copy(update={"samples_partitions": 99})
    return a_take_over(driver, settings=replace(driver.settings, broker=broker))


@pytest.mark.parametrize(
    ("refused", "error"),
    [
        (with_broken_ledger, LedgerError),
        (with_a_flood_of_garbage, DecodeError),
        (with_more_partitions, TopicMismatch),
    ],
)
def test_a_dispatcher_that_is_refused_takes_no_epoch(refused: Any, error: type[RollogError]) -> None:
    driver = DispatcherDriver()
    with driver.dispatcher() as at_work:
        take_over = refused(driver)
        with pytest.raises(error):
            take_over.start()
        with driver.broker.consumer(client_id="test") as consumer:
            read = [decode(record.value or b"") for record in read_to_end(consumer, driver.topics.control, 0)]
    assert [record.epoch for record in read if isinstance(record, DispatcherEpoch)] == [at_work.epoch]
