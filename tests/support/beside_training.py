"""One trainer, with what it does beside training in a test's hands."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rollog.kernel.metrics import Metrics
from support.late_background import LateExecutor
from support.small_training import (
    FakeRun,
    a_group,
    notices,
    turn_until,
)
from trainer.engines.simulated import SimulatedTrainingEngine
from trainer.in_flight import Background
from trainer.startup import start_trainer

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable

    from trainer.loop import Trainer
    from trainer.settings import TrainerSettings
    from trainer.step.ports import StepResult, TrainingBatch


class WatchedEngine(SimulatedTrainingEngine):
    """Calls a test with the number of each step before it is computed."""

    def __init__(self, before_step: Callable[[int], None] = lambda _: None) -> None:
        super().__init__()
        self._before_step = before_step
        self.num_steps = 0

    def train_step(self, batch: TrainingBatch) -> StepResult:
        self.num_steps += 1
        self._before_step(self.num_steps)
        return super().train_step(batch)


class Beside:
    """One trainer of a run, with what it does beside training in a test's hands."""

    def __init__(self, run: FakeRun, settings: TrainerSettings) -> None:
        self.run = run
        self.settings = settings
        self.steps = LateExecutor()

    def trainer(
        self, before_step: Callable[[int], None] = lambda _: None, *, stop: threading.Event | None = None
    ) -> Trainer:
        return self.trainer_of(WatchedEngine(before_step), stop=stop)

    def trainer_of(
        self,
        engine: SimulatedTrainingEngine,
        *,
        checkpoints: LateExecutor | None = None,
        stop: threading.Event | None = None,
        num_pauses: int = 0,
    ) -> Trainer:
        """Checkpoints are written when they are looked at, unless a test has them in its hands, too."""
        self.steps = LateExecutor()
        background = Background(
            steps=self.steps,
            checkpoints=LateExecutor(0) if checkpoints is None else checkpoints,
            pauses_seconds=(1.0,) * num_pauses,
        )
        return start_trainer(
            self.settings, self.run.broker, Metrics(), engine, background=background, stop=stop
        )

    def die(self) -> None:
        """The process ends: what is in flight does not land."""
        self.steps.die()

    def send_groups(self, *groups: int, version: int = 0) -> None:
        """Complete groups that were begun under a committed version."""
        sha256 = notices(self.run.broker, self.run.topics)[version].sha256
        for group in groups:
            self.run.send(*a_group(group, weights_sha256=sha256, version=version))

    @property
    def committed_version(self) -> int:
        """What anybody else reads in the ledger."""
        return self.run.ledger()[-1].version


def turn_until_sealed(trainer: Trainer, version: int) -> None:
    turn_until(trainer, lambda: trainer.ledger.version >= version, f"version {version} sealed")


def train_two_steps(beside: Beside, trainer: Trainer, *, between: Callable[[], None] = lambda: None) -> None:
    """Seal two steps, as far as they come, and leave."""
    with trainer:
        beside.send_groups(0, 1, 2, 3)
        turn_until_sealed(trainer, 1)
        between()
        turn_until_sealed(trainer, 2)
