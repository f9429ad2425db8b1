"""Settings that change when a run goes on: recorded once, in force from the next step, redone under their revision."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from support.recorded_steps import recording_of, replayed
from support.small_training import (
    FakeRun,
    NaiveEngine,
    a_group,
    trainer_settings,
    turn_until_version,
)

from rollog.kernel.errors import ConfigError, LedgerError
from rollog.kernel.metrics import Metrics
from rollog.settings.training import TrainerConfig
from schemas import Amend, LedgerKind, Step
from trainer.recorded.history import read_history
from trainer.role import training_engine
from trainer.startup import start_trainer
from trainer.step.schedule import learning_rate

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from rollog.kernel.broker.topics import RunTopics
    from trainer.loop import Trainer
    from trainer.settings import TrainerSettings

pytestmark = pytest.mark.engine


@pytest.fixture
def settings(tmp_path: Path, run_topics: RunTopics, model_path: str) -> TrainerSettings:
    trainer = TrainerConfig(num_minibatches=2, checkpoint_every_steps=2, verdicts_interval_seconds=0.0)
    return trainer_settings(tmp_path, run_topics, model_path, trainer=trainer)


def a_trainer(
    settings: TrainerSettings, run: FakeRun, amendment: Mapping[str, object] | None = None
) -> Trainer:
    engine = NaiveEngine(optimizer=settings.optimizer, num_optimizer_steps=6)
    return start_trainer(settings, run.broker, Metrics(), engine, amendment=amendment)


def train(run: FakeRun, trainer: Trainer, *versions: int) -> None:
    for version in versions:
        sha256 = trainer.ledger.weights[version - 1]
        for group in (2 * version - 2, 2 * version - 1):
            run.send(*a_group(group, weights_sha256=sha256, version=version - 1))
        turn_until_version(trainer, version)


def steps_of(run: FakeRun) -> list[Step]:
    return [record.body for record in run.ledger() if isinstance(record.body, Step)]


def amendments_of(run: FakeRun) -> list[dict[str, object]]:
    return [json.loads(record.body.changes_json) for record in run.ledger() if isinstance(record.body, Amend)]


def test_a_changed_learning_rate_is_recorded_once_and_used_from_the_next_step_on(
    run: FakeRun, settings: TrainerSettings
) -> None:
    with a_trainer(settings, run) as trainer:
        train(run, trainer, 1)
    for _ in range(2):
        with a_trainer(settings, run, {"optimizer.learning_rate": 1e-3}):
            pass
    with a_trainer(settings, run) as trainer:
        train(run, trainer, 2)
    assert amendments_of(run) == [{"optimizer.learning_rate": 1e-3}]
    first, second = steps_of(run)
    changed = settings.optimizer.model_copy(update={"learning_rate": 1e-3})
    assert (first.revision, second.revision) == (0, 1)
    assert first.learning_rates == tuple(learning_rate(step, 6, settings.optimizer) for step in (0, 1))
    assert second.learning_rates == tuple(learning_rate(step, 6, changed) for step in (2, 3))
    assert [record.kind for record in run.ledger()][2] is LedgerKind.AMEND


def test_settings_that_are_as_they_were_change_nothing(run: FakeRun, settings: TrainerSettings) -> None:
    same = {"optimizer.learning_rate": settings.optimizer.learning_rate, "freshness.alpha": 1}
    with a_trainer(settings, run, same):
        pass
    assert amendments_of(run) == []


def test_several_revisions_are_redone_bit_for_bit_from_anywhere(
    run: FakeRun, settings: TrainerSettings, tmp_path: Path
) -> None:
    amendments: list[Mapping[str, object]] = [
        {},
        {"optimizer.learning_rate": 1e-3, "algorithm.clip_high": 0.1},
        {"optimizer.betas": [0.5, 0.6], "trainer.num_minibatches": 1, "algorithm.type": "decoupled_ppo"},
    ]
    with start_trainer(settings, run.broker, Metrics(), training_engine(settings)) as trainer:
        train(run, trainer, 1)
    for version, amendment in ((2, amendments[1]), (3, amendments[2])):
        with start_trainer(
            settings, run.broker, Metrics(), training_engine(settings), amendment=amendment
        ) as trainer:
            train(run, trainer, version)
    assert [step.revision for step in steps_of(run)] == [0, 1, 2]
    assert [len(step.losses) for step in steps_of(run)] == [2, 2, 1]

    for begin, checkpoint in ((0, None), (2, "step-000002")):
        used, steps = replayed(recording_of(run.broker, settings, tmp_path), begin, 3)
        assert used == checkpoint
        assert all(not step.differing for step in steps)
    shutil.rmtree(settings.checkpoints)
    with start_trainer(settings, run.broker, Metrics(), training_engine(settings)) as trainer:
        assert trainer.ledger.revision == 2
    assert read_history(run.broker, run.topics).state.changed_settings(1) == amendments[1]


def test_a_new_type_comes_with_its_defaults_but_for_what_is_said_beside_it(
    run: FakeRun, settings: TrainerSettings
) -> None:
    amendment = {"algorithm.type": "gspo", "algorithm.clip_low": 0.2}
    for _ in range(2):
        with a_trainer(settings, run, amendment):
            pass
    assert amendments_of(run) == [
        {
            "algorithm.type": "gspo",
            "algorithm.aggregation": "sequence_mean",
            "algorithm.ratio_level": "sequence_mean",
            "algorithm.clip_high": 4e-4,
        }
    ]


def test_a_killed_trainer_s_changes_are_in_force_for_the_next(
    run: FakeRun, settings: TrainerSettings
) -> None:
    with a_trainer(settings, run) as trainer:
        train(run, trainer, 1)
    with a_trainer(settings, run, {"run.num_steps": 4, "freshness.alpha": 0.0}) as trainer:
        assert trainer.ledger.alpha == 0.0
    with a_trainer(settings, run) as trainer:
        train(run, trainer, 2, 3, 4)
        run.stop()
        while not trainer.ledger.is_closed:
            trainer.run_once()
    assert trainer.ledger.version == 4
    assert {step.alpha for step in steps_of(run)[1:]} == {0.0}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"groups.group_size": 4}, r"groups\.group_size"),
        ({"trainer.zero_stage": 2}, r"trainer\.zero_stage cannot change.*optimizer\.learning_rate"),
        ({"run.num_steps": 1}, "version 1 is made already"),
        ({"optimizer.learning_rate": 0.0}, "greater than 0"),
    ],
)
def test_what_cannot_change_is_refused_by_name_and_nothing_is_recorded(
    run: FakeRun, settings: TrainerSettings, changes: dict[str, object], message: str
) -> None:
    with a_trainer(settings, run) as trainer:
        train(run, trainer, 1)
    with pytest.raises(ConfigError, match=message), a_trainer(settings, run, changes):
        pass
    assert amendments_of(run) == []


def test_more_steps_than_all_are_refused(run: FakeRun, settings: TrainerSettings) -> None:
    settings = replace(settings, run_config=settings.run_config.model_copy(update={"num_steps": 1}))
    with a_trainer(settings, run) as trainer:
        train(run, trainer, 1)
    with (
        pytest.raises(ConfigError, match="has made its 1 steps"),
        a_trainer(settings, run, {"run.num_steps": 3}),
    ):
        pass


def test_changes_of_another_version_end_recovery(run: FakeRun, settings: TrainerSettings) -> None:
    with a_trainer(settings, run) as trainer:
        train(run, trainer, 1)
    with a_trainer(settings, run, {"optimizer.learning_rate": 1e-3}):
        pass
    history = read_history(run.broker, run.topics)
    history.state.amendments[1] = {"optimizer.momentum": 0.9}
    recording = replace(recording_of(run.broker, settings, settings.home), history=history)
    with pytest.raises(LedgerError, match="settings of revision 1"):
        recording.settings_of(replace(recording.step(1), revision=1))
