"""A trainer that dies anywhere is followed by one that goes on as if it had not."""

from __future__ import annotations

import shutil
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest
from support.exports import content_of, exported_by
from support.small_training import (
    FakeRun,
    NaiveEngine,
    a_group,
    notices,
    trainer_settings,
    turn_until_version,
)

from rollog.kernel.broker.memory import MemoryBroker
from rollog.kernel.broker.topics import RunTopics
from rollog.kernel.errors import EngineError, Expired, LedgerError, WeightsError
from rollog.kernel.metrics import Metrics
from rollog.kernel.weights import WeightsStore
from rollog.settings.training import TrainerConfig
from schemas import Disposition, Rebase, Step
from trainer.ledger.records import genesis_record
from trainer.ledger.writer import LedgerWriter
from trainer.recorded.history import History
from trainer.role import training_engine
from trainer.startup import start_trainer

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rollog.kernel.broker.memory_producers import MemoryTransactionalProducer
    from rollog.kernel.broker.ports import Broker
    from trainer.engines.ports import TrainingEngine
    from trainer.loop import Trainer
    from trainer.settings import TrainerSettings

pytestmark = pytest.mark.engine


class Killed(BaseException):
    """Stands for SIGKILL: nothing catches it."""


class DyingProducer:
    """A producer whose process dies around a commit, when its broker says so."""

    def __init__(self, producer: MemoryTransactionalProducer, death: Callable[[], str | None]) -> None:
        self._producer = producer
        self._death = death

    def __getattr__(self, name: str) -> Any:
        return getattr(self._producer, name)

    def commit(self, timeout_seconds: float) -> None:
        if self._death() == "before commit":
            raise Killed
        self._producer.commit(timeout_seconds)
        if self._death() == "after commit":
            raise Killed


class DyingBroker(MemoryBroker):
    """A broker whose transactional producers can be made to die."""

    death: str | None = None

    def transactional_producer(
        self,
        transactional_id: str,
        *,
        topics: Sequence[str] = (),
        transaction_timeout_seconds: float = 15.0,
    ) -> MemoryTransactionalProducer:
        made = super().transactional_producer(
            transactional_id, topics=topics, transaction_timeout_seconds=transaction_timeout_seconds
        )
        return cast("MemoryTransactionalProducer", DyingProducer(made, lambda: self.death))


@pytest.fixture
def settings(tmp_path: Path, run_topics: RunTopics, model_path: str) -> TrainerSettings:
    return trainer_settings(
        tmp_path,
        run_topics,
        model_path,
        trainer=TrainerConfig(num_minibatches=2, checkpoint_every_steps=2, verdicts_interval_seconds=0.0),
    )


def naive(settings: TrainerSettings) -> TrainingEngine:
    return NaiveEngine(optimizer=settings.optimizer, num_optimizer_steps=6)


def a_trainer(settings: TrainerSettings, broker: Broker, engine: TrainingEngine | None = None) -> Trainer:
    return start_trainer(settings, broker, Metrics(), engine or naive(settings))


def train(run: FakeRun, trainer: Trainer, *versions: int) -> None:
    """Feed and make these versions, each from two groups of its own."""
    for version in versions:
        sha256 = trainer.ledger.weights[version - 1]
        for group in (2 * version - 2, 2 * version - 1):
            run.send(*a_group(group, weights_sha256=sha256, version=version - 1))
        turn_until_version(trainer, version)


def published(run: FakeRun) -> dict[int, str]:
    """What the ledger says of each version, checked for samples trained twice."""
    trained = [
        (verdict.group_id, verdict.replica)
        for record in run.ledger()
        for verdict in record.verdicts
        if verdict.disposition is Disposition.TRAINED
    ]
    assert len(trained) == len(set(trained))
    return {
        record.version: record.body.weights_sha256 for record in run.ledger() if isinstance(record.body, Step)
    }


def weights_without_interruption(tmp_path: Path, settings: TrainerSettings) -> dict[int, str]:
    broker, topics = MemoryBroker(), RunTopics("rollog-test", "undisturbed")
    run = FakeRun(broker, topics)
    run.create_topics()
    undisturbed = replace(settings, run=topics.run, home=tmp_path / "undisturbed")
    undisturbed = replace(undisturbed, weights_uri=str(tmp_path / "undisturbed" / "weights"))
    with a_trainer(undisturbed, broker) as trainer:
        train(run, trainer, 1, 2, 3)
    return published(run)


@pytest.mark.parametrize("num_before", [0, 1, 2])
def test_a_restarted_trainer_goes_on_bit_for_bit(
    run: FakeRun, settings: TrainerSettings, tmp_path: Path, num_before: int
) -> None:
    with a_trainer(settings, run.broker) as trainer:
        train(run, trainer, *range(1, num_before + 1))
    with a_trainer(settings, run.broker) as trainer:
        assert trainer.ledger.version == num_before
        train(run, trainer, *range(num_before + 1, 4))
    assert published(run) == weights_without_interruption(tmp_path, settings)


def test_without_any_checkpoint_every_step_is_redone_from_version_0(
    run: FakeRun, settings: TrainerSettings, tmp_path: Path
) -> None:
    with a_trainer(settings, run.broker) as trainer:
        train(run, trainer, 1, 2)
    shutil.rmtree(settings.checkpoints)
    with a_trainer(settings, run.broker) as trainer:
        train(run, trainer, 3)
    assert published(run) == weights_without_interruption(tmp_path, settings)


def test_samples_that_were_read_but_not_judged_are_read_again(
    run: FakeRun, settings: TrainerSettings
) -> None:
    with a_trainer(settings, run.broker) as trainer:
        first = trainer.ledger.weights[0]
        run.send(*a_group(0, weights_sha256=first))
        trainer.run_once()
    with a_trainer(settings, run.broker) as trainer:
        run.send(*a_group(1, weights_sha256=first))
        turn_until_version(trainer, 1)
    assert len(published(run)) == 1


@pytest.mark.parametrize(("death", "version_after"), [("before commit", 1), ("after commit", 2)])
def test_killed_around_the_commit_the_step_happened_once_or_not_at_all(
    run_topics: RunTopics, settings: TrainerSettings, tmp_path: Path, death: str, version_after: int
) -> None:
    broker = DyingBroker()
    run = FakeRun(broker, run_topics)
    run.create_topics()
    with a_trainer(settings, broker) as trainer:
        train(run, trainer, 1)
        broker.death = death
        with pytest.raises(Killed):
            train(run, trainer, 2)
        broker.death = None
    assert len(WeightsStore(settings.weights_uri).names()) == 6
    with a_trainer(settings, broker) as trainer:
        assert trainer.ledger.version == version_after
        turn_until_version(trainer, 2)
        train(run, trainer, 3)
    assert published(run) == weights_without_interruption(tmp_path, settings)


class LateEngine(NaiveEngine):
    """Loads a checkpoint that another trainer thins out at that moment, or that cannot be loaded at all."""

    deletes = True

    def load_checkpoint(self, directory: Path) -> None:
        if self.deletes:
            shutil.rmtree(directory)
        raise FileNotFoundError(directory)


def test_a_checkpoint_that_another_trainer_deletes_means_that_it_is_started_again(
    run: FakeRun, settings: TrainerSettings
) -> None:
    with a_trainer(settings, run.broker) as trainer:
        train(run, trainer, 1, 2)
    late = LateEngine(optimizer=settings.optimizer, num_optimizer_steps=6)
    late.deletes = False
    with pytest.raises(FileNotFoundError):
        a_trainer(settings, run.broker, late)
    late = LateEngine(optimizer=settings.optimizer, num_optimizer_steps=6)
    with pytest.raises(Expired, match="was deleted while it was loaded"):
        a_trainer(settings, run.broker, late)
    with a_trainer(settings, run.broker) as trainer:
        train(run, trainer, 3)
    assert len(published(run)) == 3


def test_a_damaged_checkpoint_is_passed_over(run: FakeRun, settings: TrainerSettings) -> None:
    with a_trainer(settings, run.broker) as trainer:
        train(run, trainer, 1, 2)
    (settings.checkpoints / "step-000002" / "state.pt").write_bytes(b"torn")
    with a_trainer(settings, run.broker) as trainer:
        train(run, trainer, 3)
    assert len(published(run)) == 3


def test_a_checkpoint_ahead_of_the_ledger_is_refused_by_name(run: FakeRun, settings: TrainerSettings) -> None:
    with a_trainer(settings, run.broker) as trainer:
        train(run, trainer, 1, 2)
    other = FakeRun(MemoryBroker(), run.topics)
    other.create_topics()
    with a_trainer(settings, other.broker):
        pass
    with pytest.raises(LedgerError, match="step-000002 is ahead"), a_trainer(settings, other.broker):
        pass


def test_a_checkpoint_of_another_history_is_refused_by_name(run: FakeRun, settings: TrainerSettings) -> None:
    with a_trainer(settings, run.broker) as trainer:
        train(run, trainer, 1, 2)
    manifest = settings.checkpoints / "step-000002" / "manifest.json"
    sha256 = trainer.ledger.weights[2]
    manifest.write_text(manifest.read_text().replace(sha256, "f" * 64))
    with pytest.raises(LedgerError, match="belongs to another run"), a_trainer(settings, run.broker):
        pass


def test_weights_that_cannot_be_reproduced_stop_recovery_and_name_both_sides(
    run: FakeRun, settings: TrainerSettings
) -> None:
    with a_trainer(settings, run.broker) as trainer:
        train(run, trainer, 1)
    changed = replace(settings, optimizer=settings.optimizer.model_copy(update={"learning_rate": 0.5}))
    with pytest.raises(EngineError, match="redoing the step of version 1"), a_trainer(changed, run.broker):
        pass


def elsewhere(settings: TrainerSettings, **trainer: Any) -> TrainerSettings:
    """As if on a machine that rounds differently: the same steps give other weights there."""
    return replace(
        settings,
        optimizer=settings.optimizer.model_copy(update={"epsilon": 1e-6}),
        trainer=settings.trainer.model_copy(update=trainer),
    )


def test_where_it_is_allowed_other_weights_take_over_under_a_new_version(
    run: FakeRun, settings: TrainerSettings
) -> None:
    settings = replace(settings, trainer=settings.trainer.model_copy(update={"checkpoint_every_steps": 10}))
    settings = replace(settings, run_config=settings.run_config.model_copy(update={"num_steps": 6}))
    with a_trainer(settings, run.broker) as trainer:
        train(run, trainer, 1, 2)
    there = elsewhere(settings, allow_rebase=True)
    with a_trainer(there, run.broker) as trainer:
        assert trainer.ledger.version == 3
        train(run, trainer, 4)
    record = next(record for record in run.ledger() if isinstance(record.body, Rebase))
    assert isinstance(record.body, Rebase)
    assert (record.version, record.body.version_not_reproduced) == (3, 2)
    assert record.body.expected_sha256 == published(run)[2] != record.body.weights_sha256
    assert 0 < record.body.max_difference < 1
    newest = notices(run.broker, run.topics)
    assert [notice.version for notice in newest] == [0, 1, 2, 3, 4]
    assert newest[3].sha256 == record.body.weights_sha256
    assert (Path(settings.weights_uri) / newest[3].name).is_file()

    for remove_checkpoints in (False, True):
        if remove_checkpoints:
            shutil.rmtree(settings.checkpoints)
        with a_trainer(elsewhere(settings), run.broker) as trainer:
            assert trainer.ledger.version == 4
    assert sum(isinstance(record.body, Rebase) for record in run.ledger()) == 1


def test_after_a_rebase_the_first_machine_does_not_go_on_from_its_own_checkpoint(
    run: FakeRun, settings: TrainerSettings, tmp_path: Path
) -> None:
    with a_trainer(settings, run.broker) as trainer:
        train(run, trainer, 1, 2)
    with a_trainer(replace(elsewhere(settings, allow_rebase=True), home=tmp_path / "elsewhere"), run.broker):
        pass
    with pytest.raises(EngineError, match="redoing the step of version 2"), a_trainer(settings, run.broker):
        pass


def test_missing_initial_weights_stop_recovery(run: FakeRun, settings: TrainerSettings) -> None:
    with a_trainer(settings, run.broker):
        pass
    shutil.rmtree(settings.weights_uri)
    with pytest.raises(WeightsError, match="v000000-"), a_trainer(settings, run.broker):
        pass


@pytest.mark.parametrize("kept", ["none", ".manifest", ".safetensors", "damaged manifest", "cut shard"])
def test_the_newest_version_is_put_under_new_names_into_a_store_that_has_lost_it(
    run: FakeRun, settings: TrainerSettings, tmp_path: Path, kept: str
) -> None:
    with a_trainer(settings, run.broker) as trainer:
        train(run, trainer, 1, 2)
    store = WeightsStore(settings.weights_uri)
    newest = notices(run.broker, run.topics)[-1]
    for path in Path(settings.weights_uri).glob("v000002-*"):
        if kept == "damaged manifest" and path.suffix == ".manifest":
            path.write_bytes(path.read_bytes()[:-2])
        elif kept == "cut shard" and path.suffix == ".safetensors":
            path.write_bytes(path.read_bytes()[:-1])
        elif kept in ("none", ".manifest", ".safetensors") and path.suffix != kept:
            path.unlink()

    with a_trainer(settings, run.broker) as trainer:
        again = notices(run.broker, run.topics)[-1]
        assert (again.version, again.sha256) == (2, newest.sha256)
        assert again.name != newest.name
        store.fetch(again, tmp_path / "fetched")
        train(run, trainer, 3)
    with a_trainer(settings, run.broker):
        assert [notice.version for notice in notices(run.broker, run.topics)] == [0, 1, 2, 2, 3]
    published(run)


def test_a_version_that_is_there_is_not_published_again(run: FakeRun, settings: TrainerSettings) -> None:
    for _ in range(2):
        with a_trainer(settings, run.broker):
            (notice,) = notices(run.broker, run.topics)
            assert sorted(WeightsStore(settings.weights_uri).file_names(notice)) == sorted(
                path.name for path in Path(settings.weights_uri).iterdir()
            )


def test_a_run_that_began_with_single_files_goes_on_with_them(
    run: FakeRun, settings: TrainerSettings
) -> None:
    begin_with_one_file(run, settings)
    with a_trainer(settings, run.broker) as trainer:
        train(run, trainer, 1, 2)
    shutil.rmtree(settings.checkpoints)
    store = WeightsStore(settings.weights_uri)
    newest = notices(run.broker, run.topics)[-1]
    store.delete(newest.name)
    with a_trainer(settings, run.broker) as trainer:  # which redoes every step, and compares
        assert notices(run.broker, run.topics)[-1] == newest, (
            "the file has its name again, and no other notice"
        )
        train(run, trainer, 3)
        assert content_of(trainer._engine) != trainer.ledger.weights[3]
        assert sha256(exported_by(trainer._engine)).hexdigest() == trainer.ledger.weights[3]
    for notice in notices(run.broker, run.topics):
        assert notice.format == "safetensors"
        assert sha256(Path(settings.weights_uri, notice.name).read_bytes()).hexdigest() == notice.sha256
    assert len(store.names()) == 4


def begin_with_one_file(run: FakeRun, settings: TrainerSettings) -> None:
    """Version 0 and genesis, as a trainer wrote them that knew no manifests."""
    engine = naive(settings)
    engine.start(settings.model_path)
    data = exported_by(engine)
    notice = WeightsStore(settings.weights_uri).publish(0, data)
    assert notice.name == f"v000000-{sha256(data).hexdigest()[:16]}.safetensors"
    record = genesis_record(
        engine.describe(),
        manifest_json=settings.manifest_json,
        alpha=1.0,
        weights_sha256=notice.sha256,
        weights_identity="file",
        num_partitions=settings.broker.samples_partitions,
        versions={},
    )
    writer = LedgerWriter(
        run.broker, run.topics, transaction_timeout_seconds=15.0, max_record_bytes=1_000_000
    )
    writer.commit(record, weights=[notice])
    writer.close()


@pytest.mark.parametrize("zero_stage", [1, 3])
def test_deepspeed_recovers_bit_for_bit_with_and_without_a_checkpoint(
    run: FakeRun, settings: TrainerSettings, zero_stage: int
) -> None:
    trainer_config = settings.trainer.model_copy(update={"zero_stage": zero_stage})
    settings = replace(settings, trainer=trainer_config)
    with a_trainer(settings, run.broker, training_engine(settings)) as trainer:
        train(run, trainer, 1, 2)
    with a_trainer(settings, run.broker, training_engine(settings)) as trainer:
        assert trainer.ledger.version == 2
    shutil.rmtree(settings.checkpoints)
    with a_trainer(settings, run.broker, training_engine(settings)) as trainer:
        train(run, trainer, 3)
    assert sorted(published(run)) == [1, 2, 3]


def test_a_checkpoint_that_comes_while_another_trainer_reads_the_ledger_is_not_ahead_of_it(
    run: FakeRun, settings: TrainerSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one at work may commit a step and save its checkpoint between two readings of the one that starts."""
    read_on = History.read_on
    with a_trainer(settings, run.broker) as at_work:
        train(run, at_work, 1)

        def read_on_and_be_overtaken(history: History, broker: Broker, topics: RunTopics) -> None:
            read_on(history, broker, topics)
            if at_work.ledger.version == 1:
                train(run, at_work, 2)  # which has a checkpoint

        monkeypatch.setattr(History, "read_on", read_on_and_be_overtaken)
        with a_trainer(settings, run.broker) as successor:
            assert successor.ledger.version == 2
