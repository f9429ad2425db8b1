"""A step is written and committed beside the next one: what is trained meanwhile, and what a failure leaves.

No thread decides here: what is in flight lands when the test says so, or when the trainer waits for it.
"""

from __future__ import annotations

import json
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from support.beside_training import Beside, WatchedEngine, train_two_steps, turn_until_sealed
from support.late_background import LateExecutor, late_background
from support.simulated_parts import Killed
from support.small_training import (
    FakeRun,
    a_rollout,
    dispositions,
    notices,
    turn_until,
)

from rollog.kernel.errors import EngineError, Superseded, WeightsError
from rollog.kernel.metrics import Metrics
from rollog.kernel.versions.tensors import TensorSpec
from rollog.kernel.weights import WeightsStore
from rollog.settings.run import RunConfig
from schemas import Close, Disposition, LedgerKind, LedgerRecord, Status, Step, StepTimings
from trainer.checkpoints import CheckpointStore
from trainer.in_flight import Background
from trainer.publishing import WeightsPublisher
from trainer.startup import start_trainer

if TYPE_CHECKING:
    from collections.abc import Callable

    from rollog.kernel.versions.tensors import TensorSink
    from trainer.engines.ports import TrainingEngine
    from trainer.publishing import SealedWeights
    from trainer.settings import TrainerSettings


def test_the_next_step_trains_while_a_step_is_written(beside: Beside) -> None:
    committed_at_step: dict[int, int] = {}
    with beside.trainer(
        lambda number: committed_at_step.update({number: beside.committed_version})
    ) as trainer:
        beside.send_groups(0, 1, 2, 3)
        turn_until_sealed(trainer, 2)
        assert committed_at_step == {1: 0, 2: 0}, "step 2 was trained while version 1 was in flight"
        assert beside.committed_version == 1, "which landed before version 2 was sealed"
        assert (trainer.ledger.version, trainer.committed_version) == (2, 1)
        beside.steps.land()
        trainer.run_once()
        assert beside.committed_version == trainer.committed_version == 2
    assert [notice.version for notice in notices(beside.run.broker, beside.run.topics)] == [0, 1, 2]
    assert set(dispositions(beside.run).values()) == {Disposition.TRAINED}


def test_what_is_done_behind_a_step_ends_before_the_next_one_is_sealed(
    beside: Beside, monkeypatch: pytest.MonkeyPatch
) -> None:
    asks: list[Callable[[], bool]] = []
    answers: dict[str, bool] = {}
    seal = WeightsPublisher.seal

    def seals(publisher: WeightsPublisher, version: int, engine: TrainingEngine) -> SealedWeights:
        answers.update((f"sealing {version}", ask()) for ask in asks)
        return seal(publisher, version, engine)

    monkeypatch.setattr(WeightsPublisher, "tidy", lambda _, is_over: asks.append(is_over))
    monkeypatch.setattr(WeightsPublisher, "seal", seals)

    def trains(number: int) -> None:
        answers.update((f"training {number}", ask()) for ask in asks)

    with beside.trainer(trains) as trainer:
        beside.send_groups(0, 1, 2, 3)
        turn_until_sealed(trainer, 1)
        beside.steps.land()
        turn_until_sealed(trainer, 2)
    assert answers == {"training 2": False, "sealing 2": True}


def test_checkpoints_wait_while_training_waits_for_a_version(beside: Beside) -> None:
    engine = WatchedEngine()
    is_checkpoint_waiting: list[bool] = []

    with ThreadPoolExecutor(2) as pool:

        def ask() -> None:
            pool.submit(engine.way.give_to_copies).result(timeout=60.0)  # as who writes the version does
            given = pool.submit(engine.way.give)
            is_checkpoint_waiting.append(not wait([given], timeout=0.2).done)

        with beside.trainer_of(engine) as trainer:
            beside.send_groups(0, 1, 2, 3)
            turn_until_sealed(trainer, 1)
            beside.steps.before_work = ask
            turn_until_sealed(trainer, 2)
            beside.steps.before_work = lambda: None
    assert is_checkpoint_waiting == [True]


def test_beside_and_inside_give_the_same_records_but_for_their_times(
    beside: Beside, settings: TrainerSettings, tmp_path: Path
) -> None:
    topics = replace(beside.run.topics, run=f"{beside.run.topics.run}-inside")
    run = FakeRun(beside.run.broker, topics)
    run.create_topics()
    config = settings.trainer.model_copy(update={"publish_beside_training": False})
    inside = Beside(
        run, replace(settings, run=topics.run, trainer=config, weights_uri=str(tmp_path / "inside"))
    )
    for each in (beside, inside):
        with each.trainer() as trainer:
            each.send_groups(0, 1, 2, 3)
            turn_until_sealed(trainer, 2)
        assert each.committed_version == 2
    assert len(beside.steps.futures) == 2 * 2, "each step, and what is tidied behind it"
    assert inside.steps.futures == []
    ours, theirs = ([timeless(record) for record in each.run.ledger()[1:]] for each in (beside, inside))
    assert ours == theirs


def timeless(record: LedgerRecord) -> LedgerRecord:
    """A step without what depends on the clock, and on what was before it."""
    assert isinstance(record.body, Step)
    return replace(record, previous_hash=b"", body=replace(record.body, timings=StepTimings()))


def test_num_steps_is_exact_and_the_run_closes_after_the_last_step_has_landed(
    beside: Beside, settings: TrainerSettings
) -> None:
    beside.settings = replace(settings, run_config=RunConfig(num_steps=1, close_timeout_seconds=30.0))
    with beside.trainer() as trainer:
        beside.send_groups(0, 1, 2, 3)
        turn_until_sealed(trainer, 1)
        for _ in range(3):
            trainer.run_once()
            assert trainer.ledger.version == 1, "there are groups for another step, and it is not taken"
        assert beside.committed_version == 0
        beside.run.stop()
        turn_until(trainer, lambda: trainer.ledger.is_closed, "closed")
    records = beside.run.ledger()
    assert [record.kind for record in records] == [LedgerKind.GENESIS, LedgerKind.STEP, LedgerKind.CLOSE]
    assert records[-1].body == Close(end_offsets=(4, 4), reason="num_steps")


def test_a_run_that_closes_without_stopped_lets_the_step_in_flight_land_first(
    beside: Beside, settings: TrainerSettings
) -> None:
    beside.settings = replace(settings, run_config=RunConfig(num_steps=1, close_timeout_seconds=1e-6))
    with beside.trainer() as trainer:
        beside.send_groups(0, 1)
        turn_until(trainer, lambda: trainer.ledger.is_closed, "closed")
    kinds = [record.kind for record in beside.run.ledger()]
    assert kinds == [LedgerKind.GENESIS, LedgerKind.STEP, LedgerKind.CLOSE]


def test_verdicts_wait_until_nothing_is_in_flight(beside: Beside) -> None:
    with beside.trainer() as trainer:
        beside.send_groups(0, 1)
        turn_until_sealed(trainer, 1)
        sha256 = trainer.ledger.weights[0]
        beside.run.send(a_rollout(2, 0, weights_sha256=sha256, status=Status.FAILED, error_class="X"))
        turn_until(trainer, lambda: trainer._buffer.has_pending, "a verdict is pending")
        trainer.run_once()
        assert [record.kind for record in beside.run.ledger()] == [LedgerKind.GENESIS]
        beside.steps.land()
        trainer.run_once()
    kinds = [record.kind for record in beside.run.ledger()]
    assert kinds == [LedgerKind.GENESIS, LedgerKind.STEP, LedgerKind.VERDICTS]


def test_a_sample_of_a_version_that_landed_unnoticed_is_judged_by_its_digest(beside: Beside) -> None:
    with beside.trainer() as trainer:
        beside.send_groups(0, 1)
        turn_until_sealed(trainer, 1)
        future, _ = beside.steps.futures
        future.is_unnoticed = True
        beside.steps.land()
        beside.send_groups(2, 3, version=1)
        turn_until_sealed(trainer, 2)
    assert set(dispositions(beside.run).values()) == {Disposition.TRAINED}


def test_a_stop_commits_what_is_in_flight_and_saves_it(beside: Beside, settings: TrainerSettings) -> None:
    stop = threading.Event()
    with beside.trainer(lambda number: stop.set() if number == 2 else None, stop=stop) as trainer:
        beside.send_groups(0, 1, 2, 3)
        trainer.run(stop)
    assert beside.committed_version == 2
    (checkpoint,) = CheckpointStore(settings.checkpoints).complete()
    assert checkpoint.version == 2
    assert not settings.failed_batches.exists()


def test_a_step_that_fails_leaves_the_one_in_flight_committed(
    beside: Beside, settings: TrainerSettings
) -> None:
    def fail_at_2(number: int) -> None:
        if number == 2:
            raise EngineError("the device is gone")

    with pytest.raises(EngineError, match="the device is gone"):
        train_two_steps(beside, beside.trainer(fail_at_2))
    assert beside.committed_version == 1
    assert json.loads(settings.failed_batches.read_text())["version"] == 2, "of step 1 nobody is suspect"


class NanEngine(WatchedEngine):
    """Its weights are a NaN after the second step."""

    def export_weights(self, sink: TensorSink | None) -> None:
        if self.num_steps < 2:
            super().export_weights(sink)
        elif sink is not None:
            spec = TensorSpec("digest", "F32", (1,))
            sink.begin([spec])
            sink.add(spec, np.array([np.nan], np.float32).view(np.uint8).data)


def test_a_nan_is_found_at_the_seal_and_leaves_the_step_before_committed(
    beside: Beside, settings: TrainerSettings
) -> None:
    with pytest.raises(EngineError, match="has a NaN"):
        train_two_steps(beside, beside.trainer_of(NanEngine()))
    assert beside.committed_version == 1
    assert json.loads(settings.failed_batches.read_text())["version"] == 2
    assert {name[:7] for name in WeightsStore(settings.weights_uri).names()} == {"v000000", "v000001"}


def test_who_is_fenced_in_flight_commits_neither_the_step_nor_the_next(beside: Beside, run: FakeRun) -> None:
    with beside.trainer() as overtaken:
        beside.send_groups(0, 1, 2, 3)
        turn_until_sealed(overtaken, 1)
        successor = Beside(run, beside.settings)
        with successor.trainer() as trainer:
            with pytest.raises(Superseded, match="epoch 2"):
                turn_until_sealed(overtaken, 2)
            assert beside.committed_version == 0
            turn_until_sealed(trainer, 2)
        assert beside.committed_version == 2


def test_who_dies_with_a_step_in_flight_has_never_trained_it(
    beside: Beside, settings: TrainerSettings
) -> None:
    config = settings.trainer.model_copy(update={"checkpoint_every_steps": 1})
    beside.settings = replace(settings, trainer=config)
    with pytest.raises(Killed):
        train_two_steps(beside, beside.trainer(), between=beside.die)
    assert beside.committed_version == 0
    assert CheckpointStore(settings.checkpoints).complete() == []
    with beside.trainer() as trainer:
        assert list(settings.checkpoints.iterdir()) == [], "files without a manifest are removed"
        turn_until_sealed(trainer, 2)
    assert beside.committed_version == 2
    assert set(dispositions(beside.run).values()) == {Disposition.TRAINED}


class Repairs(threading.Event):
    """A stop that never comes; the second pause that is waited with it takes away what is in the store's place."""

    def __init__(self, store: Path) -> None:
        super().__init__()
        self.pauses: list[float | None] = []
        self._store = store

    def wait(self, timeout: float | None = None) -> bool:
        self.pauses.append(timeout)
        if len(self.pauses) == 2:
            put_back(self._store)
        return False


def put_away(store: Path) -> None:
    store.rename(store.with_name("kept"))
    store.write_text("in the way")


def put_back(store: Path) -> None:
    store.unlink()
    store.with_name("kept").rename(store)


def test_a_write_that_fails_is_made_again_from_the_copy(beside: Beside, settings: TrainerSettings) -> None:
    store = Path(settings.weights_uri)
    stop = Repairs(store)
    with beside.trainer_of(WatchedEngine(), stop=stop, num_pauses=3) as trainer:
        beside.send_groups(0, 1, 2, 3)
        turn_until_sealed(trainer, 1)
        put_away(store)
        turn_until_sealed(trainer, 2)
        assert beside.committed_version == 1
        assert stop.pauses == [1.0, 1.0]
    weights = WeightsStore(settings.weights_uri)
    found = notices(beside.run.broker, beside.run.topics)
    for notice in found:
        weights.check(notice)
    assert weights.orphans([notice.name for notice in found]) == []


def test_a_store_that_takes_no_attempt_ends_the_trainer_with_its_error(
    beside: Beside, settings: TrainerSettings
) -> None:
    store = Path(settings.weights_uri)
    with pytest.raises(WeightsError, match="could not be written"):
        train_two_steps(beside, beside.trainer(), between=lambda: put_away(store))
    assert beside.committed_version == 0
    assert not settings.failed_batches.exists(), "no sample is to blame"
    put_back(store)
    with beside.trainer() as trainer:
        turn_until_sealed(trainer, 2)
    assert beside.committed_version == 2


def test_where_a_step_killed_a_trainer_the_one_before_it_is_committed_first(
    beside: Beside, settings: TrainerSettings
) -> None:
    """Else each trainer would lose version 1 with its own death in step 2, and the note of who is suspect."""

    def die_at_2(number: int) -> None:
        if number == 2:
            beside.die()
            raise Killed

    with pytest.raises(Killed):
        train_two_steps(beside, beside.trainer(die_at_2))
    assert beside.committed_version == 0
    assert json.loads(settings.failed_batches.read_text())["version"] == 2

    seen: list[int] = []
    with beside.trainer(lambda _: seen.append(beside.committed_version)) as trainer:
        turn_until_sealed(trainer, 2)
    assert seen == [0, 1]


def test_a_step_counts_how_long_training_was_held_up_and_not_how_long_writing_took(
    run: FakeRun, settings: TrainerSettings
) -> None:
    now = [0.0]

    def write_for_10_seconds() -> None:
        now[0] += 10.0

    def train_for_3_seconds(number: int) -> None:
        del number
        now[0] += 3.0

    steps = LateExecutor(before_work=write_for_10_seconds)
    background = Background(steps=steps, checkpoints=LateExecutor(0), pauses_seconds=())
    engine = WatchedEngine(train_for_3_seconds)
    with start_trainer(
        settings, run.broker, Metrics(), engine, background=background, clock=lambda: now[0]
    ) as trainer:
        Beside(run, settings).send_groups(0, 1, 2, 3)
        turn_until_sealed(trainer, 2)
    timings = [record.body.timings for record in run.ledger() if isinstance(record.body, Step)]
    assert [each.train_seconds for each in timings] == [3.0, 3.0]
    assert [each.publish_seconds for each in timings] == [0.0, 10.0]


def test_a_snapshot_never_holds_a_step_in_flight(beside: Beside, settings: TrainerSettings) -> None:
    beside.settings = replace(settings, snapshot_every_seconds=0.0)
    with beside.trainer() as trainer:
        beside.send_groups(0, 1)
        trainer.run_once()
        before = settings.snapshot.read_bytes() if settings.snapshot.exists() else b""
        turn_until_sealed(trainer, 1)
        for _ in range(3):
            trainer.run_once()
        assert (settings.snapshot.read_bytes() if settings.snapshot.exists() else b"") in {before, b""}
        beside.steps.land()
        trainer.run_once()
        assert settings.snapshot.exists()
        assert sorted(trainer._history.steps) == [1]
    shutil.rmtree(settings.checkpoints, ignore_errors=True)
    with beside.trainer() as trainer:
        assert trainer.ledger.version == 1, "redone, where the snapshot says that its record is"


def test_nothing_is_done_beside_where_the_settings_say_so(beside: Beside, settings: TrainerSettings) -> None:
    config = settings.trainer.model_copy(update={"publish_beside_training": False})
    beside.settings = replace(settings, trainer=config)
    with beside.trainer() as trainer:
        beside.send_groups(0, 1)
        turn_until_sealed(trainer, 1)
        assert beside.committed_version == trainer.committed_version == 1
        assert beside.steps.futures == []


def test_a_trainer_that_waits_for_workers_says_that_a_version_is_in_flight(
    run: FakeRun, settings: TrainerSettings
) -> None:
    background = late_background()
    with start_trainer(settings, run.broker, Metrics(), WatchedEngine(), background=background) as trainer:
        Beside(run, settings).send_groups(0, 1)
        turn_until_sealed(trainer, 1)
        cause = trainer._cause()
        assert "version 1 is being written to the store" in cause.what
        assert cause.waits_on == "trainer"
