"""The training loop under an alpha that changes: by schedule, at barriers, under control, and over restarts."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
from support.small_training import (
    FakeRun,
    NaiveEngine,
    a_group,
    a_rollout,
    dispositions,
    trainer_settings,
    turn_until,
    turn_until_version,
)

from rollog.kernel.broker.memory import MemoryBroker
from rollog.kernel.broker.topics import RunTopics
from rollog.kernel.metrics import Metrics
from rollog.rules.alpha_control import TakenStep, alpha_of_step
from rollog.settings.groups import FreshnessConfig
from rollog.settings.run import RunConfig
from rollog.settings.training import TrainerConfig
from schemas import Disposition, LedgerKind, Step
from trainer.startup import start_trainer

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from trainer.loop import Trainer
    from trainer.settings import TrainerSettings
    from trainer.step.ports import StepResult, TrainingBatch

pytestmark = pytest.mark.engine

num_steps = 6
hybrid = FreshnessConfig(alpha=((0, 0.0), (2, 2.0)), barrier_every_steps=4)
auto = FreshnessConfig(alpha="auto", auto_step=0.5, auto_max=2.0, barrier_every_steps=4)
waited_seconds = {1: 60.0, 2: 3.0, 3: 3.0, 4: 9.0, 5: 0.0, 6: 0.0}
divergences = {1: 0.0, 2: 0.01, 3: 0.02, 4: 0.0, 5: 0.08, 6: 0.06}
alphas_under_control = [1.0, 1.0, 1.5, 0.0, 2.0, 1.5]


class MeasuringEngine(NaiveEngine):
    """Each step takes a second of the clock and says it was so far off policy, whoever takes it."""

    def __init__(self, now: list[float]) -> None:
        super().__init__()
        self._now = now

    def train_step(self, batch: TrainingBatch) -> StepResult:
        result = super().train_step(batch)
        self._now[0] += 1.0
        divergence = divergences[self._steps_taken // 2]
        statistics = {"first_effective_sample_size": 1 - divergence, "first_divergence": divergence}
        return replace(result, statistics=statistics)


@dataclass
class TimedRun:
    """A run on a clock that the test turns, by as many trainers as it takes."""

    run: FakeRun
    settings: TrainerSettings
    now: list[float] = field(default_factory=lambda: [0.0])
    metrics: Metrics = field(default_factory=Metrics)

    def trainer(self) -> Trainer:
        engine = MeasuringEngine(self.now)
        return start_trainer(self.settings, self.run.broker, self.metrics, engine, clock=lambda: self.now[0])

    def train(self, trainer: Trainer, *versions: int) -> None:
        """Let the trainer wait, feed it and make these versions, each from two groups of its own."""
        for version in versions:
            self.now[0] += waited_seconds[version]
            self._feed(trainer, version)
            turn_until_version(trainer, version)

    def _feed(self, trainer: Trainer, version: int) -> None:
        sha256 = trainer.ledger.weights[version - 1]
        for group in (2 * version - 2, 2 * version - 1):
            self.run.send(*a_group(group, weights_sha256=sha256, version=version - 1))

    def steps(self) -> list[Step]:
        return [record.body for record in self.run.ledger() if isinstance(record.body, Step)]


def a_run(home: Path, model_path: str, freshness: FreshnessConfig, name: str = "first") -> TimedRun:
    broker, topics = MemoryBroker(), RunTopics("rollog-test", name)
    run = FakeRun(broker, topics)
    run.create_topics()
    settings = trainer_settings(
        home / name,
        topics,
        model_path,
        freshness=freshness,
        run_config=RunConfig(num_steps=num_steps),
        trainer=TrainerConfig(num_minibatches=2, checkpoint_every_steps=3, verdicts_interval_seconds=0.0),
    )
    return TimedRun(run, settings)


def in_force(run: TimedRun) -> list[float]:
    """By step; each is what the ledger record before the step said."""
    records = run.run.ledger()
    assert [step.alpha for step in run.steps()] == [
        before.alpha for before, record in pairwise(records) if record.kind is LedgerKind.STEP
    ]
    return [step.alpha for step in run.steps()]


def weights(run: TimedRun) -> Mapping[int, str]:
    return {version: step.weights_sha256 for version, step in enumerate(run.steps(), start=1)}


def test_a_schedule_and_its_barriers_are_in_the_ledger_before_each_step(
    tmp_path: Path, model_path: str
) -> None:
    run = a_run(tmp_path, model_path, hybrid)
    with run.trainer() as trainer:
        run.train(trainer, *range(1, num_steps + 1))
    assert in_force(run) == [0.0, 0.0, 2.0, 0.0, 2.0, 2.0]
    assert run.run.ledger()[0].alpha == 0.0


def test_the_control_raises_while_the_trainer_waits_and_lowers_off_policy(
    tmp_path: Path, model_path: str
) -> None:
    run = a_run(tmp_path, model_path, auto)
    with run.trainer() as trainer:
        run.train(trainer, *range(1, num_steps + 1))
    assert in_force(run) == alphas_under_control
    assert trainer.ledger.alpha == 1.0
    registry = run.metrics.registry
    assert registry.get_sample_value("rollog_trainer_alpha") == 1.0
    assert registry.get_sample_value("rollog_trainer_divergence_nats") == 0.06
    assert registry.get_sample_value("rollog_trainer_effective_sample_size_ratio") == 0.94


def test_whoever_reads_the_ledger_comes_to_the_same_alphas(tmp_path: Path, model_path: str) -> None:
    run = a_run(tmp_path, model_path, auto)
    with run.trainer() as trainer:
        run.train(trainer, *range(1, num_steps + 1))
    taken = [TakenStep.recorded(number, body) for number, body in enumerate(run.steps(), start=1)]
    derived = [alpha_of_step(number, taken[: number - 1], auto) for number in range(1, num_steps + 1)]
    assert derived == in_force(run)


@pytest.mark.parametrize("freshness", [hybrid, auto], ids=["schedule", "auto"])
@pytest.mark.parametrize("num_before", [0, 2, 3, 4])
def test_a_restarted_trainer_goes_on_with_the_same_alphas_and_weights(
    tmp_path: Path, model_path: str, freshness: FreshnessConfig, num_before: int
) -> None:
    undisturbed = a_run(tmp_path, model_path, freshness, "undisturbed")
    with undisturbed.trainer() as trainer:
        undisturbed.train(trainer, *range(1, num_steps + 1))
    run = a_run(tmp_path, model_path, freshness)
    with run.trainer() as trainer:
        run.train(trainer, *range(1, num_before + 1))
    with run.trainer() as trainer:
        assert trainer.ledger.alpha == in_force(undisturbed)[num_before]
        run.train(trainer, *range(num_before + 1, num_steps + 1))
    assert in_force(run) == in_force(undisturbed)
    assert weights(run) == weights(undisturbed)


def test_what_a_barrier_makes_stale_is_not_trained_even_after_a_restart(
    tmp_path: Path, model_path: str
) -> None:
    run = a_run(tmp_path, model_path, FreshnessConfig(alpha=2.0, barrier_every_steps=2))
    with run.trainer() as trainer:
        first = trainer.ledger.weights[0]
        for group in range(4):
            run.run.send(*a_group(group, weights_sha256=first))
        turn_until_version(trainer, 1)
    with run.trainer() as trainer:
        assert trainer.ledger.alpha == 0.0
        turn_until(trainer, lambda: trainer.ledger.num_by_disposition[Disposition.STALE] == 4, "stale")
        assert trainer.ledger.version == 1
        for group in (2, 3):
            for replica in range(2):
                sha256 = trainer.ledger.weights[1]
                run.run.send(a_rollout(group, replica, weights_sha256=sha256, version=1, attempt=1))
        turn_until_version(trainer, 2)
        assert trainer.ledger.alpha == 2.0
    found = dispositions(run.run)
    assert {found[f"g{group}.r{replica}.a0"] for group in (2, 3) for replica in (0, 1)} == {Disposition.STALE}
    assert {found[f"g{group}.r{replica}.a1"] for group in (2, 3) for replica in (0, 1)} == {
        Disposition.TRAINED
    }
    assert [step.lags for step in run.steps()] == [{"0": 4}, {"0": 4}]
