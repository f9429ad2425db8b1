"""A checkpoint is copied at the seal and written beside the next step: when it is one, and what a failure leaves.

No thread decides here: files are written when the test says so, or when the trainer waits for them.
"""

from __future__ import annotations

import errno
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from support.beside_training import Beside, WatchedEngine, train_two_steps, turn_until_sealed
from support.late_background import LateExecutor
from support.small_training import (
    FakeRun,
    notices,
)

from rollog.kernel.errors import DiskFull, EngineError
from rollog.kernel.metrics import Metrics
from schemas import Step
from trainer.checkpoints import CheckpointStore
from trainer.engines.simulated import SimulatedTrainingEngine
from trainer.in_flight import Background
from trainer.publishing import weights_sha256
from trainer.startup import start_trainer

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from trainer.checkpoint_files import Digests
    from trainer.settings import TrainerSettings


def with_checkpoints(settings: TrainerSettings) -> TrainerSettings:
    """One after each step."""
    return replace(settings, trainer=settings.trainer.model_copy(update={"checkpoint_every_steps": 1}))


def test_a_checkpoint_has_its_manifest_when_its_version_is_committed(
    beside: Beside, settings: TrainerSettings
) -> None:
    beside.settings = with_checkpoints(settings)
    store = CheckpointStore(settings.checkpoints)
    finishing = LateExecutor()
    with beside.trainer_of(WatchedEngine(), checkpoints=finishing) as trainer:
        beside.send_groups(0, 1, 2, 3)
        turn_until_sealed(trainer, 1)
        (begun,) = settings.checkpoints.iterdir()
        assert list(begun.iterdir()) == [], "its files are written beside the next step"
        assert store.complete() == []
        turn_until_sealed(trainer, 2)
        finishing.land()
        assert [each.version for each in store.complete()] == [2, 1]
        assert beside.committed_version == 2, "who finishes a checkpoint waits for its version"
    with beside.trainer() as trainer:
        assert trainer.ledger.version == 2
        assert [each.version for each in store.complete()] == [2, 1], "a start removes remains alone"


def test_a_checkpoint_holds_the_weights_of_its_step_although_the_next_one_is_trained(
    beside: Beside, settings: TrainerSettings
) -> None:
    beside.settings = with_checkpoints(settings)
    with beside.trainer_of(WatchedEngine(), checkpoints=LateExecutor()) as trainer:
        beside.send_groups(0, 1, 2, 3)
        turn_until_sealed(trainer, 2)
        weights = [notice.sha256 for notice in notices(beside.run.broker, beside.run.topics)]
        (checkpoint,) = CheckpointStore(settings.checkpoints).complete()
    engine = SimulatedTrainingEngine()
    engine.start(settings.model_path)
    engine.load_checkpoint(checkpoint.directory)
    assert (checkpoint.version, checkpoint.weights_sha256) == (1, weights[1])
    assert weights_sha256(engine, "content") == weights[1]
    assert checkpoint.damage() is None


class UnwritableEngine(WatchedEngine):
    """Copies for checkpoints are made, and cannot be written."""

    def begin_checkpoint(self, directory: Path) -> Callable[[], Digests]:
        super().begin_checkpoint(directory)

        def write() -> Digests:
            (directory / "half").write_bytes(b"half")
            raise OSError(errno.ENOSPC, "No space left on device")

        return write


def test_a_disk_that_is_full_beside_a_step_ends_the_trainer_and_the_step_is_committed(
    beside: Beside, settings: TrainerSettings
) -> None:
    beside.settings = with_checkpoints(settings)
    with pytest.raises(DiskFull, match=f"No space left on device.*{settings.checkpoints}"):
        train_two_steps(beside, beside.trainer_of(UnwritableEngine()), between=beside.steps.land)
    assert beside.committed_version >= 1
    assert list(settings.checkpoints.iterdir()) == [], "what is half written takes room"
    beside.settings = settings
    with beside.trainer() as trainer:
        turn_until_sealed(trainer, 2)
    assert beside.committed_version == 2


def test_a_trainer_that_fails_finishes_the_checkpoint_that_it_began(
    beside: Beside, settings: TrainerSettings
) -> None:
    def fail_at_2(number: int) -> None:
        if number == 2:
            raise EngineError("the device is gone")

    beside.settings = with_checkpoints(settings)
    trainer = beside.trainer_of(WatchedEngine(fail_at_2), checkpoints=LateExecutor())
    with pytest.raises(EngineError, match="the device is gone"):
        train_two_steps(beside, trainer)
    assert [each.version for each in CheckpointStore(settings.checkpoints).complete()] == [1]


def test_who_comes_to_the_next_checkpoint_waits_for_the_one_that_is_written(
    run: FakeRun, settings: TrainerSettings
) -> None:
    now = [0.0]

    def write_for_10_seconds() -> None:
        now[0] += 10.0

    checkpoints = LateExecutor(before_work=write_for_10_seconds)
    background = Background(steps=LateExecutor(), checkpoints=checkpoints, pauses_seconds=())
    metrics = Metrics()
    with start_trainer(
        with_checkpoints(settings),
        run.broker,
        metrics,
        WatchedEngine(),
        background=background,
        clock=lambda: now[0],
    ) as trainer:
        samples = Beside(run, settings)
        samples.send_groups(0, 1, 2, 3)
        turn_until_sealed(trainer, 2)
        samples.send_groups(4, 5, version=1)
        turn_until_sealed(trainer, 3)
        assert len(checkpoints.futures) == 3
        assert checkpoints.futures[1].done(), "one at a time"
    timings = [record.body.timings for record in run.ledger() if isinstance(record.body, Step)]
    assert [each.checkpoint_seconds for each in timings] == [0.0, 0.0, 10.0]
    told = metrics.registry.get_sample_value("rollog_trainer_step_seconds_sum", {"phase": "checkpoint"})
    assert told == 10.0, "of the two that are known to be complete"
