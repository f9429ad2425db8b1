"""A batch that training fails on: its samples are found, named and closed, and training goes on."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, ClassVar

import pytest
from support.late_background import hurried_background
from support.small_training import FakeRun, a_group, trainer_settings, turn_until_version
from support.waiting import wait_until

from rollog.kernel.errors import EngineError, WeightsError
from rollog.kernel.metrics import Metrics
from rollog.rules.reasons import untrainable
from schemas import Disposition
from trainer.engines.simulated import SimulatedTrainingEngine
from trainer.startup import start_trainer

if TYPE_CHECKING:
    from rollog.kernel.broker.topics import RunTopics
    from trainer.checkpoint_files import Digests
    from trainer.engines.ports import EngineDescription
    from trainer.settings import TrainerSettings
    from trainer.step.ports import StepResult, TrainingBatch


class PoisonedEngine(SimulatedTrainingEngine):
    """Fails on responses of these samples, or dies in them as a killed process does."""

    def __init__(self, poison: set[bytes], error: type[BaseException] = IndexError) -> None:
        super().__init__()
        self._poison = poison
        self._error = error

    def train_step(self, batch: TrainingBatch) -> StepResult:
        result = super().train_step(batch)
        if any(sample.token_ids.tobytes() in self._poison for sample in batch.samples):
            raise self._error("index out of range in self")
        return result


class FragileEngine(PoisonedEngine):
    """Of no use once a step has failed, as several ranks and a GPU after an assertion are."""

    def __init__(self, poison: set[bytes]) -> None:
        super().__init__(poison)
        self._is_broken = False

    def train_step(self, batch: TrainingBatch) -> StepResult:
        if self._is_broken:
            raise EngineError("broken before")
        self._is_broken = True
        result = super().train_step(batch)
        self._is_broken = False
        return result

    def load_checkpoint(self, directory: Path) -> None:
        if self._is_broken:
            raise EngineError("broken before")
        super().load_checkpoint(directory)


class StoppedEngine(PoisonedEngine):
    """Asks for a stop in a step, and waits until the note knows of it; then fails as the others do."""

    def __init__(self, poison: set[bytes], error: type[BaseException], stop: Event, note: Path) -> None:
        super().__init__(poison, error)
        self._stop = stop
        self._note = note
        self.num_steps = 0

    def train_step(self, batch: TrainingBatch) -> StepResult:
        self.num_steps += 1
        before = self._note.read_text()
        self._stop.set()
        wait_until(lambda: self._note.read_text() != before)
        return super().train_step(batch)


class RanksOnLostMachines(FragileEngine):
    """Two ranks."""

    def describe(self) -> EngineDescription:
        return replace(super().describe(), world_size=2)


class EngineOfALostStore(SimulatedTrainingEngine):
    """Puts a file where the store was, while a step is trained: nothing can be published there."""

    def __init__(self, store: Path) -> None:
        super().__init__()
        self._store = store

    def train_step(self, batch: TrainingBatch) -> StepResult:
        self._store.rename(self._store.with_name("kept"))
        self._store.touch()
        return super().train_step(batch)


class Death(BaseException):
    """The process ends here."""


@pytest.fixture
def settings(tmp_path_factory: pytest.TempPathFactory, run_topics: RunTopics) -> TrainerSettings:
    return trainer_settings(tmp_path_factory.mktemp("home"), run_topics, "simulated")


def train(run: FakeRun, settings: TrainerSettings, engine: SimulatedTrainingEngine, version: int) -> None:
    background = hurried_background()
    with start_trainer(settings, run.broker, Metrics(), engine, background=background) as trainer:
        turn_until_version(trainer, version)


def send_groups(
    run: FakeRun, settings: TrainerSettings, *groups: int, engine: SimulatedTrainingEngine | None = None
) -> dict[int, set[bytes]]:
    """Groups under version 0; returns the responses of each."""
    with start_trainer(settings, run.broker, Metrics(), engine or SimulatedTrainingEngine()) as trainer:
        samples = {group: a_group(group, weights_sha256=trainer.ledger.weights[0]) for group in groups}
    run.send(*(sample for group in samples.values() for sample in group))
    return {group: {sample.token_ids.tobytes() for sample in samples[group]} for group in groups}


def closed_as_untrainable(run: FakeRun) -> list[int]:
    """The group of each sample that was disposed of for this reason."""
    return [
        verdict.group_id
        for record in run.ledger()
        for verdict in record.verdicts
        if verdict.reason == untrainable
    ]


@pytest.mark.parametrize(("error", "num_ends"), [(IndexError, 3), (Death, 4)])
def test_samples_that_fail_twice_are_tried_alone_named_and_closed_and_training_goes_on(
    error: type[BaseException], num_ends: int, run: FakeRun, settings: TrainerSettings
) -> None:
    responses = send_groups(run, settings, 0, 1, 2)
    for _ in range(num_ends):
        with pytest.raises((error, EngineError)):
            train(run, settings, PoisonedEngine(responses[1], error), 1)
    train(run, settings, PoisonedEngine(responses[1], error), 1)
    verdicts = {
        (verdict.group_id, verdict.disposition, verdict.reason)
        for record in run.ledger()
        for verdict in record.verdicts
    }
    assert verdicts == {
        (0, Disposition.TRAINED, ""),
        (1, Disposition.INCOMPLETE, untrainable),
        (2, Disposition.TRAINED, ""),
    }
    assert not settings.failed_batches.exists()
    # A redo needs no note: it trains what the ledger says.
    with start_trainer(settings, run.broker, Metrics(), SimulatedTrainingEngine()) as trainer:
        assert trainer.ledger.version == 1


def test_where_every_group_fails_alone_the_samples_are_not_at_fault(
    run: FakeRun, settings: TrainerSettings
) -> None:
    responses = send_groups(run, settings, 0, 1)
    every = responses[0] | responses[1]
    for said in ("out of range", "out of range", "not at fault"):
        with pytest.raises((IndexError, EngineError), match=said):
            train(run, settings, PoisonedEngine(every), 1)
    assert sum(len(record.verdicts) for record in run.ledger()) == 0


def test_nobody_is_guilty_of_what_breaks_every_step_and_the_engine_with_it(
    run: FakeRun, settings: TrainerSettings
) -> None:
    responses = send_groups(run, settings, 0, 1)
    every = responses[0] | responses[1]
    for said in ("out of range", "out of range", "1 more group", "not at fault", "out of range"):
        with pytest.raises((IndexError, EngineError), match=said):
            train(run, settings, FragileEngine(every), 1)
    assert sum(len(record.verdicts) for record in run.ledger()) == 0


def test_nobody_is_guilty_where_every_step_fails_and_batches_change_meanwhile(
    run: FakeRun, settings: TrainerSettings
) -> None:
    every = set[bytes]()
    for groups, said in (
        ((1, 2), "out of range"),
        ((), "out of range"),
        ((0,), "not at fault"),
        ((), "out of range"),
    ):
        every |= {token for responses in send_groups(run, settings, *groups).values() for token in responses}
        with pytest.raises((IndexError, EngineError), match=said):
            train(run, settings, PoisonedEngine(every), 1)
    assert sum(len(record.verdicts) for record in run.ledger()) == 0


def test_a_whole_batch_that_fails_is_told_from_a_broken_engine_by_another_group(
    run: FakeRun, settings: TrainerSettings
) -> None:
    responses = send_groups(run, settings, 0, 1, 2, 3)
    poison = responses[0] | responses[1]
    for said in ("out of range", "out of range", r"group\(s\) \[0, 1\]"):
        with pytest.raises((IndexError, EngineError), match=said):
            train(run, settings, PoisonedEngine(poison), 1)
    train(run, settings, PoisonedEngine(poison), 1)
    assert set(closed_as_untrainable(run)) == {0, 1}


def test_where_the_process_dies_in_every_trial_it_is_said_that_no_sample_is_at_fault(
    run: FakeRun, settings: TrainerSettings
) -> None:
    responses = send_groups(run, settings, 0, 1)
    every = responses[0] | responses[1]
    for _ in range(6):
        with pytest.raises(Death):
            train(run, settings, PoisonedEngine(every, Death), 1)
    with pytest.raises(EngineError, match=r"not at fault \(the process died\)"):
        train(run, settings, PoisonedEngine(every, Death), 1)
    assert sum(len(record.verdicts) for record in run.ledger()) == 0


def test_an_engine_that_breaks_with_a_trial_still_finds_who_is_guilty(
    run: FakeRun, settings: TrainerSettings
) -> None:
    responses = send_groups(run, settings, 0, 1, 2)
    for said in ("out of range", "out of range", "1 more group", r"group\(s\) \[0\]"):
        with pytest.raises((IndexError, EngineError), match=said):
            train(run, settings, FragileEngine(responses[0]), 1)
    train(run, settings, FragileEngine(responses[0]), 1)
    assert closed_as_untrainable(run) == [0, 0]


def test_guilt_is_committed_before_the_next_batch_is_trained(run: FakeRun, settings: TrainerSettings) -> None:
    responses = send_groups(run, settings, 0, 1, 2)
    for _ in range(3):
        with pytest.raises((IndexError, EngineError)):
            train(run, settings, PoisonedEngine(responses[0]), 1)
    with pytest.raises(WeightsError, match="has room"):
        train(run, settings, EngineOfALostStore(Path(settings.weights_uri)), 1)
    assert not settings.failed_batches.exists()
    assert closed_as_untrainable(run) == [0, 0]


def run_until_stopped(run: FakeRun, settings: TrainerSettings, engine: StoppedEngine, stop: Event) -> None:
    stop.clear()
    with start_trainer(settings, run.broker, Metrics(), engine) as trainer:
        trainer.run(stop)


def test_who_is_killed_because_a_step_outlasts_a_stop_makes_nobody_suspect(
    run: FakeRun, settings: TrainerSettings
) -> None:
    responses = send_groups(run, settings, 0, 1, 2)
    stop = Event()
    every = responses[0] | responses[1] | responses[2]
    engine = StoppedEngine(every, Death, stop, settings.failed_batches)
    for _ in range(3):
        with pytest.raises(Death):
            run_until_stopped(run, settings, engine, stop)
    assert engine.num_steps == 3  # none of them a trial


def test_a_stop_ends_trials_and_the_one_under_way_does_not_count(
    run: FakeRun, settings: TrainerSettings
) -> None:
    responses = send_groups(run, settings, 0, 1, 2)
    for _ in range(2):
        with pytest.raises(IndexError):
            train(run, settings, PoisonedEngine(responses[0]), 1)
    stop = Event()
    for _ in range(3):
        dying = StoppedEngine(responses[0], Death, stop, settings.failed_batches)
        with pytest.raises(Death):
            run_until_stopped(run, settings, dying, stop)
    ending = StoppedEngine(set(), Death, stop, settings.failed_batches)
    with pytest.raises(EngineError, match="by a stop"):
        run_until_stopped(run, settings, ending, stop)
    assert ending.num_steps == 1
    assert closed_as_untrainable(run) == []


def test_a_machine_that_is_lost_in_a_trial_is_no_proof_against_its_group(
    run: FakeRun, settings: TrainerSettings
) -> None:
    responses = send_groups(run, settings, 0, 1, 2, engine=RanksOnLostMachines(set()))
    for said in ("out of range", "out of range", "2 more group", "1 more group", r"group\(s\) \[0\]"):
        with pytest.raises((IndexError, EngineError), match=said):
            train(run, settings, RanksOnLostMachines(responses[0]), 1)
    train(run, settings, RanksOnLostMachines(set()), 1)
    assert closed_as_untrainable(run) == [0, 0]


def test_a_trial_leaves_nothing_behind_and_lets_nobody_else_write(
    run: FakeRun, settings: TrainerSettings
) -> None:
    class Looking(PoisonedEngine):
        modes: ClassVar[list[int]] = []

        def save_checkpoint(self, directory: Path) -> Digests:
            digests = super().save_checkpoint(directory)
            (directory / "more").mkdir()
            return digests

        def load_checkpoint(self, directory: Path) -> None:
            paths = (directory.parent, *directory.rglob("*"))
            self.modes.extend(path.stat().st_mode & 0o022 for path in paths)
            super().load_checkpoint(directory)

    responses = send_groups(run, settings, 0, 1)
    before = os.umask(0o002)
    try:
        for _ in range(3):
            with pytest.raises((IndexError, EngineError)):
                train(run, settings, Looking(responses[0]), 1)
    finally:
        os.umask(before)
    assert Looking.modes
    assert set(Looking.modes) == {0}
    assert not settings.failed_batches.with_name("trial").exists()


def test_a_failure_that_does_not_come_again_costs_nothing(run: FakeRun, settings: TrainerSettings) -> None:
    responses = send_groups(run, settings, 0, 1)
    with pytest.raises(IndexError):
        train(run, settings, PoisonedEngine(responses[0]), 1)
    assert json.loads(settings.failed_batches.read_text())["version"] == 1
    train(run, settings, SimulatedTrainingEngine(), 1)
    assert not settings.failed_batches.exists()


def test_a_store_that_takes_no_weights_is_no_fault_of_the_samples(
    run: FakeRun, settings: TrainerSettings
) -> None:
    send_groups(run, settings, 0, 1)
    store = Path(settings.weights_uri)
    for _ in range(3):
        with pytest.raises(WeightsError, match="has room"):
            train(run, settings, EngineOfALostStore(store), 1)
        store.unlink()
        store.with_name("kept").rename(store)
    assert not settings.failed_batches.exists()
    train(run, settings, SimulatedTrainingEngine(), 1)


@pytest.mark.parametrize("content", ["", "{}", '{"version": 1, "groups": {"x": {"no": 1}}}', "[]"])
def test_a_note_that_is_none_is_passed_over(content: str, run: FakeRun, settings: TrainerSettings) -> None:
    send_groups(run, settings, 0, 1)
    settings.failed_batches.parent.mkdir(parents=True, exist_ok=True)
    settings.failed_batches.write_text(content)
    train(run, settings, SimulatedTrainingEngine(), 1)
