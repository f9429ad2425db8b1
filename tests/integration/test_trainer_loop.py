"""The training loop on a broker: what is trained, what is not, and how a run ends."""

from __future__ import annotations

import math
import threading
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from support.exports import content_of
from support.small_training import (
    FakeRun,
    NaiveEngine,
    a_group,
    a_rollout,
    dispositions,
    notices,
    trainer_settings,
    turn_until,
    turn_until_version,
)

from rollog.kernel.broker.memory import MemoryBroker
from rollog.kernel.broker.ports import Broker, TopicPartition
from rollog.kernel.broker.reading import read_to_end
from rollog.kernel.errors import (
    BrokerTimeout,
    ConfigError,
    DataError,
    EngineError,
    LedgerError,
    Superseded,
)
from rollog.kernel.metrics import Metrics
from rollog.kernel.versions.files import read_manifest
from rollog.kernel.weights import WeightsStore
from rollog.rules.reasons import aged_surplus
from rollog.settings.run import LastBatch, RunConfig
from schemas import (
    Close,
    DeadLetter,
    Disposition,
    Genesis,
    Kind,
    LedgerKind,
    Status,
    Step,
)
from schemas.codec import decode_as
from trainer.role import run_trainer
from trainer.startup import start_trainer
from trainer.step.batch import plan_groups, training_batch
from trainer.step.planning import step_seed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rollog.kernel.broker.topics import RunTopics
    from trainer.loop import Trainer
    from trainer.settings import TrainerSettings
    from trainer.step.ports import StepResult, TrainingBatch

pytestmark = pytest.mark.engine


@pytest.fixture
def settings(tmp_path: Path, run_topics: RunTopics, model_path: str) -> TrainerSettings:
    return trainer_settings(tmp_path, run_topics, model_path)


@pytest.fixture
def trainer(run: FakeRun, settings: TrainerSettings) -> Iterator[Trainer]:
    with a_trainer(settings, run.broker) as trainer:
        yield trainer


def a_trainer(settings: TrainerSettings, broker: Broker, **changes: Any) -> Trainer:
    engine = NaiveEngine(optimizer=settings.optimizer, num_optimizer_steps=6)
    return start_trainer(settings, broker, Metrics(), engine, **changes)


def turn_until_closed(trainer: Trainer) -> None:
    turn_until(trainer, lambda: trainer.ledger.is_closed, "closed")


def turn_until_judged(trainer: Trainer, number: int) -> None:
    turn_until(
        trainer,
        lambda: sum(trainer.ledger.num_by_disposition.values()) >= number,
        f"{number} verdicts",
    )


def send_groups(run: FakeRun, trainer: Trainer, *groups: int) -> None:
    version = trainer.ledger.version
    for group in groups:
        run.send(*a_group(group, weights_sha256=trainer.ledger.weights[version], version=version))


@pytest.mark.usefixtures("trainer")
def test_a_run_begins_with_genesis_and_version_0(run: FakeRun, settings: TrainerSettings) -> None:
    genesis = run.ledger()[0]
    assert genesis.kind is LedgerKind.GENESIS
    assert isinstance(genesis.body, Genesis)
    (notice,) = notices(run.broker, run.topics)
    assert (notice.version, notice.sha256) == (0, genesis.body.weights_sha256)
    assert (genesis.body.weights_identity, notice.format) == ("content", "manifest-1")
    assert read_manifest(Path(settings.weights_uri, notice.name))[0].digest == notice.sha256
    assert {"rollog", "python", "numpy", "torch", "kafka"} <= genesis.body.versions.keys()
    assert genesis.alpha == 1.0


def test_complete_groups_are_trained_and_the_run_closes(trainer: Trainer, run: FakeRun) -> None:
    for version in range(3):
        send_groups(run, trainer, 2 * version, 2 * version + 1)
        turn_until_version(trainer, version + 1)
    run.stop()
    turn_until_closed(trainer)
    records = run.ledger()
    assert [record.kind for record in records] == [
        LedgerKind.GENESIS,
        *[LedgerKind.STEP] * 3,
        LedgerKind.CLOSE,
    ]
    assert set(dispositions(run).values()) == {Disposition.TRAINED}
    assert len(run.sent) == 12
    assert records[-1].body == Close(end_offsets=(6, 6), reason="num_steps")
    assert [notice.version for notice in notices(run.broker, run.topics)] == [0, 1, 2, 3]


def test_a_step_record_tells_what_was_trained_and_how(trainer: Trainer, run: FakeRun) -> None:
    send_groups(run, trainer, 0, 1)
    turn_until_version(trainer, 1)
    record = run.ledger()[1]
    body = record.body
    assert isinstance(body, Step)
    assert [verdict.sample_id for verdict in record.verdicts] == [
        "g0.r0.a0",
        "g0.r1.a0",
        "g1.r0.a0",
        "g1.r1.a0",
    ]
    assert (body.num_groups, body.num_samples, body.reward_mean) == (2, 4, 0.5)
    assert body.num_tokens == sum(sample.num_tokens for sample in run.sent.values())
    assert len(body.losses) == len(body.gradient_norms) == len(body.learning_rates) == 2
    assert body.lags == {"0": 4}
    assert sorted(position for part in body.plan for position in part.positions) == [0, 1, 2, 3]
    assert body.statistics["response_tokens_mean"] == body.num_tokens / 4
    assert body.weights_sha256_before != body.weights_sha256
    assert body.timings.train_seconds > 0


def test_a_plain_loop_over_the_recorded_samples_gives_the_same_weights(
    trainer: Trainer, run: FakeRun, settings: TrainerSettings
) -> None:
    published = []
    for version in range(3):
        send_groups(run, trainer, 2 * version, 2 * version + 1)
        turn_until_version(trainer, version + 1)
        published.append(trainer.ledger.weights[version + 1])

    samples = {sample.sample_id: sample for sample in run.sent.values()}
    engine = NaiveEngine(optimizer=settings.optimizer, num_optimizer_steps=6)
    assert settings.model.path is not None
    engine.start(settings.model.path)
    for version in range(3):
        groups = [[samples[f"g{2 * version + i}.r{j}.a0"] for j in range(2)] for i in range(2)]
        plan = plan_groups(groups, settings.trainer, world_size=1, seed=step_seed(settings.seed, version + 1))
        engine.train_step(training_batch(groups, plan, settings.algorithm, 1.0))
        assert content_of(engine) == published[version]


def test_groups_without_signal_are_filtered_in_a_verdicts_record_of_their_own(
    trainer: Trainer, run: FakeRun
) -> None:
    run.send(*a_group(0, weights_sha256=trainer.ledger.weights[0], reward=1.0))
    turn_until_judged(trainer, 2)
    record = run.ledger()[1]
    assert record.kind is LedgerKind.VERDICTS
    assert [group.outcome for group in record.closed_groups] == [Disposition.FILTERED]
    assert set(dispositions(run).values()) == {Disposition.FILTERED}


def test_every_kind_of_sample_gets_its_disposition(trainer: Trainer, run: FakeRun) -> None:
    first = trainer.ledger.weights[0]
    run.send(
        a_rollout(0, 0, weights_sha256=first),
        a_rollout(0, 0, weights_sha256=first, attempt=1),
        a_rollout(0, 1, weights_sha256=first, status=Status.FAILED, error_class="X"),
        a_rollout(0, 1, weights_sha256=first, attempt=1),
        a_rollout(2, 0, weights_sha256="ff" * 32),
        a_rollout(2, 1, weights_sha256=first, status=Status.CANCELLED, cancel_reason="surplus"),
        a_rollout(4, 0, weights_sha256=first, status=Status.LOST),
        *a_group(1, weights_sha256=first),
    )
    turn_until_version(trainer, 1)
    run.send(a_rollout(0, 0, weights_sha256=first, attempt=2))
    turn_until_judged(trainer, 10)
    assert dispositions(run) == {
        "g0.r0.a0": Disposition.TRAINED,
        "g0.r0.a1": Disposition.DUPLICATE,
        "g0.r1.a0": Disposition.FAILED,
        "g0.r1.a1": Disposition.TRAINED,
        "g1.r0.a0": Disposition.TRAINED,
        "g1.r1.a0": Disposition.TRAINED,
        "g2.r0.a0": Disposition.STALE,
        "g2.r1.a0": Disposition.CANCELLED,
        "g4.r0.a0": Disposition.LOST,
        "g0.r0.a2": Disposition.DUPLICATE,
    }


def test_a_sample_over_the_lag_bound_is_stale(trainer: Trainer, run: FakeRun) -> None:
    first = trainer.ledger.weights[0]
    run.send(a_rollout(8, 0, weights_sha256=first))
    for version in range(2):
        send_groups(run, trainer, 2 * version, 2 * version + 1)
        turn_until_version(trainer, version + 1)
    turn_until_judged(trainer, 9)
    assert dispositions(run)["g8.r0.a0"] is Disposition.STALE


def test_what_must_be_made_again_is_judged_before_the_next_step_and_not_with_it(
    trainer: Trainer, run: FakeRun
) -> None:
    """Else its replica would be issued again only when the step is computed."""
    first = trainer.ledger.weights[0]
    run.send(a_rollout(8, 0, weights_sha256=first))
    for version in range(2):
        send_groups(run, trainer, 2 * version, 2 * version + 1)
        turn_until_version(trainer, version + 1)
    send_groups(run, trainer, 4, 5)
    turn_until_version(trainer, 3)
    judged = [record for record in run.ledger() if any(verdict.group_id == 8 for verdict in record.verdicts)]
    assert [(record.kind, record.version) for record in judged] == [(LedgerKind.VERDICTS, 2)]


def test_a_group_that_is_complete_when_a_step_is_committed_waited_for_its_batch(
    trainer: Trainer, run: FakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Read after the commit its members would look slow, and training would wait for the group."""
    first = trainer.ledger.weights[0]
    send_groups(run, trainer, 0, 1)
    turn_until_version(trainer, 1)
    train_groups = trainer._train_groups

    def meanwhile(*arguments: Any) -> Any:
        run.send(*a_group(8, weights_sha256=first))
        return train_groups(*arguments)

    monkeypatch.setattr(trainer, "_train_groups", meanwhile)
    send_groups(run, trainer, 2, 3)
    turn_until_version(trainer, 2)
    turn_until_judged(trainer, 10)
    stale = {v.reason for record in run.ledger() for v in record.verdicts if v.group_id == 8}
    assert stale == {aged_surplus}
    assert not trainer.ledger.stale_versions


def test_undecodable_and_foreign_records_become_dead_letters_with_their_verdict(
    trainer: Trainer, run: FakeRun
) -> None:
    run.send_raw(1, b"garbage")
    run.send(a_rollout(2, 0, weights_sha256=trainer.ledger.weights[0], kind=Kind.EVALUATION))
    turn_until_judged(trainer, 2)
    with run.broker.consumer(client_id="test") as consumer:
        letters = [
            decode_as(DeadLetter, record.value or b"")
            for record in read_to_end(consumer, run.topics.dead_letters, 0)
        ]
    assert {(letter.partition, letter.offset) for letter in letters} == {(0, 0), (1, 0)}
    assert b"garbage" in [letter.value for letter in letters]
    assert trainer.ledger.num_by_disposition[Disposition.DEAD] == 2


def test_committed_offsets_are_the_low_water_marks(
    memory_broker: MemoryBroker, trainer: Trainer, run: FakeRun
) -> None:
    run.send(a_rollout(4, 0, weights_sha256=trainer.ledger.weights[0]))
    send_groups(run, trainer, 0, 1)
    turn_until_version(trainer, 1)
    assert run.ledger()[-1].low_water_marks == (0, 2)
    assert memory_broker.committed_offsets[run.topics.trainer_group] == {
        TopicPartition(run.topics.samples, 0): 0,
        TopicPartition(run.topics.samples, 1): 2,
    }


def test_at_the_end_of_the_dataset_the_short_batch_is_trained_and_the_run_closes(
    trainer: Trainer, run: FakeRun
) -> None:
    send_groups(run, trainer, 0)
    run.end_dataset(0)
    run.stop()
    turn_until_closed(trainer)
    assert trainer.ledger.version == 1
    assert run.ledger()[-1].body == Close(end_offsets=(2, 0), reason="dataset_end")


def test_the_short_batch_is_dropped_where_the_configuration_says_so(
    memory_broker: MemoryBroker, run: FakeRun, tmp_path: Path, model_path: str
) -> None:
    run_config = RunConfig(num_steps=3, last_batch=LastBatch.DROP)
    settings = trainer_settings(tmp_path, run.topics, model_path, run_config=run_config)
    with a_trainer(settings, memory_broker) as trainer:
        send_groups(run, trainer, 0)
        run.end_dataset(0)
        run.stop()
        turn_until_closed(trainer)
        assert trainer.ledger.version == 0
    assert set(dispositions(run).values()) == {Disposition.INCOMPLETE}


def test_without_stopped_the_ledger_closes_after_the_time_out_and_disposes_of_everything(
    memory_broker: MemoryBroker, run: FakeRun, settings: TrainerSettings
) -> None:
    now = [0.0]
    with a_trainer(settings, memory_broker, clock=lambda: now[0]) as trainer:
        run.end_dataset(-1)
        turn_until(trainer, lambda: trainer._closing, "training over")
        run.send(a_rollout(0, 0, weights_sha256=trainer.ledger.weights[0]))
        trainer.run_once()
        assert not trainer.ledger.is_closed
        now[0] += settings.run_config.close_timeout_seconds + 1
        turn_until_closed(trainer)
    assert dispositions(run) == {"g0.r0.a0": Disposition.INCOMPLETE}


def test_the_close_reads_to_the_end_that_samples_have_once_the_dispatcher_stopped(
    trainer: Trainer, run: FakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sample that the trainer had not polled when it learnt of `Stopped` gets its disposition all the same."""
    end_offsets = trainer._stream.end_offsets

    def after_a_last_sample() -> tuple[int, ...]:
        run.send(a_rollout(0, 0, weights_sha256=trainer.ledger.weights[0]))
        return end_offsets()

    monkeypatch.setattr(trainer._stream, "end_offsets", after_a_last_sample)
    run.end_dataset(-1)
    run.stop()
    turn_until_closed(trainer)
    assert dispositions(run) == {"g0.r0.a0": Disposition.INCOMPLETE}


def test_a_closed_run_is_left_alone(
    memory_broker: MemoryBroker, run: FakeRun, settings: TrainerSettings
) -> None:
    run.end_dataset(-1)
    run.stop()
    with a_trainer(settings, memory_broker) as trainer:
        turn_until_closed(trainer)
    records = run.ledger()
    with a_trainer(settings, memory_broker) as trainer:
        trainer.run(threading.Event())
    assert run.ledger() == records


def test_a_closed_run_whose_samples_are_gone_is_left_alone(
    memory_broker: MemoryBroker, run: FakeRun, settings: TrainerSettings
) -> None:
    run.end_dataset(-1)
    run.stop()
    with a_trainer(settings, memory_broker) as trainer:
        turn_until_closed(trainer)
    sha256 = trainer.ledger.weights[0]
    run.send(a_rollout(0, 0, weights_sha256=sha256))
    place = TopicPartition(run.topics.samples, 0)
    with memory_broker.admin() as admin:
        admin.delete_records({place: 1})
    with a_trainer(settings, memory_broker) as trainer:
        trainer.run(threading.Event())
        assert trainer.ledger.is_closed


def test_a_graceful_stop_leaves_a_checkpoint_of_the_committed_version(
    memory_broker: MemoryBroker, run: FakeRun, settings: TrainerSettings
) -> None:
    stop = threading.Event()
    with a_trainer(settings, memory_broker) as trainer:
        send_groups(run, trainer, 0, 1)
        turn_until_version(trainer, 1)
        stop.set()
        trainer.run(stop)
    assert [path.name for path in settings.checkpoints.iterdir()] == ["step-000001"]


def test_a_trainer_that_was_fenced_writes_nothing_more(
    memory_broker: MemoryBroker, run: FakeRun, settings: TrainerSettings
) -> None:
    with a_trainer(settings, memory_broker) as zombie:
        send_groups(run, zombie, 0, 1)
        with a_trainer(settings, memory_broker) as successor:
            with pytest.raises(Superseded, match="epoch 2"):
                turn_until_version(zombie, 1)
            assert run.ledger()[-1].kind is LedgerKind.GENESIS
            turn_until_version(successor, 1)


def test_an_unknown_outcome_ends_the_trainer(settings: TrainerSettings, run_topics: RunTopics) -> None:
    broker = MemoryBroker(block_seconds=0.2)
    run = FakeRun(broker, run_topics)
    run.create_topics()
    with a_trainer(settings, broker) as trainer:
        send_groups(run, trainer, 0, 1)
        trainer._intake.take_in_samples(0.0)
        batch = trainer._next_batch()
        assert batch is not None
        broker.pause()
        trainer._train(batch)
        with pytest.raises(BrokerTimeout):
            trainer._land()
        broker.resume()


@pytest.mark.usefixtures("run")
def test_a_model_path_that_is_missing_is_named(
    memory_broker: MemoryBroker, run_topics: RunTopics, tmp_path: Path
) -> None:
    broken = trainer_settings(tmp_path, run_topics, str(tmp_path / "nowhere"))
    with pytest.raises(DataError, match="nowhere"):
        run_trainer(broken, memory_broker, Metrics(), threading.Event())


def test_another_number_of_partitions_than_the_run_began_with_is_refused(
    memory_broker: MemoryBroker, run: FakeRun, settings: TrainerSettings, tmp_path: Path, model_path: str
) -> None:
    with a_trainer(settings, memory_broker):
        pass
    broker_config = settings.broker.model_copy(update={"samples_partitions": 3})
    changed = trainer_settings(tmp_path, run.topics, model_path, broker=broker_config)
    with (
        pytest.raises(LedgerError, match="counts 2 samples partitions"),
        a_trainer(changed, memory_broker),
    ):
        pass


class ClosingEngine(NaiveEngine):
    """Counts how often it is closed."""

    num_closed = 0

    def close(self) -> None:
        self.num_closed += 1
        super().close()


def test_the_engine_is_closed_with_its_trainer_and_where_the_start_fails(
    run: FakeRun, settings: TrainerSettings
) -> None:
    engine = ClosingEngine()
    with start_trainer(settings, run.broker, Metrics(), engine) as trainer:
        assert engine.num_closed == 0
    trainer.close()
    assert engine.num_closed == 1
    broker_config = settings.broker.model_copy(update={"samples_partitions": 3})
    refused = ClosingEngine()
    with pytest.raises(LedgerError, match="counts 2 samples partitions"):
        start_trainer(replace(settings, broker=broker_config), run.broker, Metrics(), refused)
    assert refused.num_closed == 1


class DivergingEngine(NaiveEngine):
    """Its gradients are no numbers."""

    def train_step(self, batch: TrainingBatch) -> StepResult:
        return replace(super().train_step(batch), gradient_norms=(math.nan,))


def test_weights_from_a_gradient_that_is_no_number_are_never_published(
    run: FakeRun, settings: TrainerSettings
) -> None:
    with start_trainer(settings, run.broker, Metrics(), DivergingEngine()) as trainer:
        send_groups(run, trainer, 0, 1)
        with pytest.raises(EngineError, match="nothing was published"):
            turn_until_version(trainer, 1)
    assert len(WeightsStore(settings.weights_uri).names()) == 2


def test_several_ranks_of_an_engine_that_has_one_are_refused(run: FakeRun, settings: TrainerSettings) -> None:
    alone = replace(settings, trainer=settings.trainer.model_copy(update={"engine": "torch", "num_ranks": 2}))
    with pytest.raises(ConfigError, match=r"is one process, here are to be 2 ranks"):
        run_trainer(alone, run.broker, Metrics(), threading.Event())


def test_half_of_what_a_launcher_says_is_refused(
    run: FakeRun, settings: TrainerSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ConfigError, match="WORLD_SIZE = 2"):
        run_trainer(settings, run.broker, Metrics(), threading.Event())
