"""A trainer that keeps some versions: they go on the log first, and nobody but the one in charge deletes."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from support.small_training import FakeRun, a_group, trainer_settings, turn_until

from consumers.audit.auditor import audit_run
from rollog.kernel.errors import Superseded
from rollog.kernel.metrics import Metrics
from rollog.kernel.weights import WeightsStore
from rollog.settings.run import RunConfig
from rollog.settings.training import TrainerConfig
from schemas import WeightsPruned, WeightVersion
from schemas.codec import decode
from trainer.engines.simulated import SimulatedTrainingEngine
from trainer.startup import start_trainer

if TYPE_CHECKING:
    from collections.abc import Callable

    from rollog.kernel.broker.topics import RunTopics
    from trainer.loop import Trainer
    from trainer.settings import TrainerSettings


class Clock:
    """Turned by hand."""

    seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture
def settings(tmp_path: Path, run_topics: RunTopics) -> TrainerSettings:
    return keeping(tmp_path, run_topics, keep_newest_weights=2, weights_grace_seconds=0.0)


def keeping(home: Path, topics: RunTopics, **rule: Any) -> TrainerSettings:
    return trainer_settings(
        home,
        topics,
        "simulated",
        run_config=RunConfig(num_steps=6, close_timeout_seconds=30.0),
        trainer=TrainerConfig(
            num_minibatches=2, verdicts_interval_seconds=0.0, checkpoint_every_steps=4, **rule
        ),
        weights_uri=str(home / "weights" / topics.run),
    )


def a_trainer(run: FakeRun, settings: TrainerSettings, clock: Callable[[], float] | None = None) -> Trainer:
    return start_trainer(settings, run.broker, Metrics(), SimulatedTrainingEngine(), clock=clock or Clock())


def weights_log(run: FakeRun) -> list[WeightVersion | WeightsPruned]:
    found = [decode(record.value or b"") for record in run.broker_records(run.topics.weights)]
    return [record for record in found if isinstance(record, WeightVersion | WeightsPruned)]


def noticed(run: FakeRun) -> list[WeightVersion]:
    return [record for record in weights_log(run) if isinstance(record, WeightVersion)]


def pruned(run: FakeRun) -> list[tuple[int, ...]]:
    return [record.versions for record in weights_log(run) if isinstance(record, WeightsPruned)]


def stored(settings: TrainerSettings) -> list[int]:
    return sorted({int(name[1:7]) for name in WeightsStore(settings.weights_uri).names()})


def an_orphan(settings: TrainerSettings, version: int) -> WeightVersion:
    """What a trainer leaves that dies between writing and committing."""
    engine = SimulatedTrainingEngine()
    engine.start("simulated")
    return WeightsStore(settings.weights_uri).publish_tensors(version, engine.export_weights)


def train(run: FakeRun, trainer: Trainer, *steps: int) -> None:
    """Make these versions, each of two groups, begun with the one before; the store is looked after each."""
    for step in steps:
        digest = next(each.sha256 for each in noticed(run) if each.version == step - 1)
        for group in (2 * step, 2 * step + 1):
            run.send(*a_group(group, weights_sha256=digest, version=step - 1))
        turn_until(trainer, partial(is_committed, trainer, step), f"version {step}")


def is_committed(trainer: Trainer, version: int) -> bool:
    return trainer.committed_version >= version


def test_what_goes_is_on_the_log_and_the_rest_is_whole(run: FakeRun, settings: TrainerSettings) -> None:
    with a_trainer(run, settings) as trainer:
        train(run, trainer, 1, 2, 3, 4, 5, 6)
        trainer.run_once()
    # Alpha is 1: one more than two. Version 4 has a checkpoint.
    assert stored(settings) == [0, 4, 5, 6]
    assert sorted(version for each in pruned(run) for version in each) == [1, 2, 3]
    store = WeightsStore(settings.weights_uri)
    report = audit_run(run.broker, run.topics, store)
    findings = [finding for check in report.checks for finding in check.findings]
    assert findings == []
    assert any("3 version(s) (1-3), which the run let go" in line for line in report.lines())


def test_by_default_all_stay(run: FakeRun, tmp_path: Path, run_topics: RunTopics) -> None:
    settings = keeping(tmp_path, run_topics)
    with a_trainer(run, settings) as trainer:
        train(run, trainer, 1, 2, 3, 4, 5)
    assert stored(settings) == [0, 1, 2, 3, 4, 5]
    assert pruned(run) == []


def test_who_was_replaced_deletes_nothing(run: FakeRun, tmp_path: Path, run_topics: RunTopics) -> None:
    patient = keeping(tmp_path, run_topics, keep_newest_weights=2, weights_grace_seconds=1000.0)
    clock = Clock()
    with a_trainer(run, patient, clock) as first:
        train(run, first, 1, 2, 3, 4, 5)
        orphan = an_orphan(patient, 5)
        with a_trainer(run, patient) as second:
            clock.seconds = 2000.0
            with pytest.raises(Superseded):
                first.run_once()
            assert stored(patient) == [0, 1, 2, 3, 4, 5]
            assert second.committed_version == 5
    assert pruned(run) == []
    assert orphan.name in WeightsStore(patient.weights_uri).names()


def test_a_trainer_that_begins_sweeps_what_a_dead_one_left_and_touches_nothing_else(
    run: FakeRun, settings: TrainerSettings
) -> None:
    folder = Path(settings.weights_uri)
    with a_trainer(run, settings) as trainer:
        train(run, trainer, 1)
    store = WeightsStore(settings.weights_uri)
    orphan = an_orphan(settings, 2)
    (folder / "notes.txt").write_text("mine")
    clock = Clock()
    with a_trainer(run, settings, clock) as trainer:
        trainer.run_once()
        assert orphan.name in store.names(), "nothing was committed since the store was listed"
        clock.seconds += 10.0
        train(run, trainer, 2)
        trainer.run_once()
    assert orphan.name not in store.names()
    assert (folder / "notes.txt").exists()
    assert store.orphans([notice.name for notice in noticed(run)]) == []
    assert audit_run(run.broker, run.topics, store).is_clean


def test_a_newest_version_that_is_damaged_is_back_before_training_goes_on(
    run: FakeRun, settings: TrainerSettings
) -> None:
    with a_trainer(run, settings) as trainer:
        train(run, trainer, 1)
    store = WeightsStore(settings.weights_uri)
    before = noticed(run)[-1]
    shard = Path(settings.weights_uri) / store.file_names(before)[0]
    data = bytearray(shard.read_bytes())
    data[-1] ^= 1
    shard.write_bytes(data)
    with a_trainer(run, settings) as trainer:
        again = noticed(run)[-1]
        assert (again.version, again.sha256) == (before.version, before.sha256)
        assert again.name != before.name
        store.check(again)
        assert pruned(run) == []
        train(run, trainer, 2, 3)
    assert audit_run(run.broker, run.topics, store).is_clean


def test_a_newest_version_that_is_lost_while_a_trainer_waits_is_published_again(
    run: FakeRun, settings: TrainerSettings
) -> None:
    clock = Clock()
    with a_trainer(run, settings, clock) as trainer:
        train(run, trainer, 1)
        before = noticed(run)[-1]
        store = WeightsStore(settings.weights_uri)
        store.delete(before.name)
        clock.seconds += 100.0

        def is_back() -> bool:
            clock.seconds += 10.0
            return noticed(run)[-1] != before

        turn_until(trainer, is_back, "the newest version published again")
        again = noticed(run)[-1]
        assert (again.version, again.sha256) == (before.version, before.sha256)
        store.check(again)
        train(run, trainer, 2)
    assert audit_run(run.broker, run.topics, store).is_clean
