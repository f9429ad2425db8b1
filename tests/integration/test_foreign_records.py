"""What somebody else writes into a run: never trained, never waited for, judged at once."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from support.small_training import (
    FakeRun,
    NaiveEngine,
    a_group,
    a_rollout,
    dispositions,
    make_model,
    trainer_settings,
    turn_until,
    turn_until_version,
)

from rollog.kernel.metrics import Metrics
from rollog.rules.headers import SampleLimits, header_of, record_digest
from rollog.rules.reasons import other_writer
from schemas import (
    DeadLetter,
    DispatcherEpoch,
    Disposition,
    Grant,
    Status,
    Stopped,
    TrainerEpoch,
    int32_array,
)
from schemas.codec import decode_as
from trainer.control import ControlReader
from trainer.engines.simulated import SimulatedTrainingEngine
from trainer.startup import start_trainer

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from rollog.kernel.broker.topics import RunTopics
    from schemas import Sample
    from trainer.loop import Trainer
    from trainer.settings import TrainerSettings


limits = SampleLimits(num_partitions=2, num_replicas=2, temperature=1.0)


@pytest.fixture
def trainer(run: FakeRun, settings: TrainerSettings) -> Iterator[Trainer]:
    with start_trainer(settings, run.broker, Metrics(), SimulatedTrainingEngine()) as trainer:
        yield trainer


def invented(group: int, trainer: Trainer, **changes: Any) -> list[Sample]:
    return a_group(group, weights_sha256=trainer.ledger.weights[0], **changes)


def turn_until_judged(trainer: Trainer, number: int) -> None:
    turn_until(
        trainer, lambda: sum(trainer.ledger.num_by_disposition.values()) >= number, f"{number} verdicts"
    )


def letters(run: FakeRun) -> list[DeadLetter]:
    return [
        decode_as(DeadLetter, record.value or b"") for record in run.broker_records(run.topics.dead_letters)
    ]


def test_a_complete_group_that_was_never_issued_is_dead_and_named(run: FakeRun, trainer: Trainer) -> None:
    run.announce()
    run.write(*invented(6, trainer), *invented(7, trainer))
    turn_until_judged(trainer, 4)
    assert trainer.ledger.version == 0
    assert set(dispositions(run).values()) == {Disposition.DEAD}
    assert [letter.reason for letter in letters(run)][:1] == ["task 1.60000 of group 6 was never issued"]
    assert not trainer.ledger.closed_groups
    assert set(trainer.ledger.tallies) == {-1}


def test_samples_of_a_group_that_was_never_issued_hold_nothing_up(run: FakeRun, trainer: Trainer) -> None:
    run.announce()
    run.write(*invented(60, trainer), *invented(62, trainer), *invented(64, trainer))
    stale = [replace(sample, segments=()) for sample in invented(66, trainer)]
    run.write(*(replace(sample, status=Status.CANCELLED, cancel_reason="stale") for sample in stale))
    for version in range(3):
        sha256 = trainer.ledger.weights[version]
        for group in (2 * version, 2 * version + 1):
            run.send(*a_group(group, weights_sha256=sha256, version=version))
        turn_until_version(trainer, version + 1)
    assert trainer.ledger.stale_versions == {}
    assert trainer.ledger.num_by_disposition[Disposition.DEAD] == 8


@pytest.mark.parametrize(
    "changes", [{"seed": 1}, {"grant_id": "1.9"}, {"worker_id": "thief"}, {"attempt": 1}, {"task_id": "1.9"}]
)
def test_a_sample_that_is_not_what_its_task_ordered_counts_neither_for_nor_against_its_group(
    changes: dict[str, Any], run: FakeRun, trainer: Trainer
) -> None:
    ours = invented(0, trainer)
    run.issue(*ours, *invented(1, trainer))
    run.write(*(replace(sample, **changes) for sample in ours for _ in range(4)))
    turn_until_judged(trainer, 8)
    assert 0 not in trainer.ledger.closed_groups
    run.write(*ours, *invented(1, trainer))
    turn_until_version(trainer, 1)
    assert trainer.ledger.num_by_disposition == {Disposition.DEAD: 8, Disposition.TRAINED: 4}


def test_a_sample_that_is_read_before_its_task_waits_for_it(run: FakeRun, settings: TrainerSettings) -> None:
    reader = ControlReader(
        run.broker,
        run.topics,
        TrainerEpoch(epoch=1, trainer_id="this"),
        num_task_partitions=settings.broker.max_workers,
        is_issued=lambda _task: True,
        closed_groups=(),
    )
    with reader:
        reader.poll()
        sample = a_rollout(0, 0, weights_sha256="0" * 64)
        run.issue(sample)
        header = header_of(sample, partition=0, offset=0, digest=record_digest(b""), limits=limits)
        assert reader.can_place([(header, sample)], 1.0)
        assert reader.placed(header, sample).group_id == 0


def test_named_writers_are_trained_and_shown_as_what_they_are(
    run: FakeRun, settings: TrainerSettings
) -> None:
    groups = settings.groups.model_copy(update={"other_writers": ("teacher",)})
    with start_trainer(
        replace(settings, groups=groups), run.broker, Metrics(), SimulatedTrainingEngine()
    ) as trainer:
        first, second = invented(0, trainer)
        run.send(first, *invented(1, trainer))
        run.write(replace(second, worker_id="teacher", task_id="lesson", grant_id="", seed=3))
        turn_until_version(trainer, 1)
    reasons = {verdict.sample_id: verdict.reason for verdict in run.ledger()[-1].verdicts}
    assert reasons == {"g0.r0.a0": "", "g0.r1.a0": other_writer, "g1.r0.a0": "", "g1.r1.a0": ""}


def test_control_records_that_cannot_be_change_nothing(run: FakeRun, trainer: Trainer) -> None:
    run.announce()
    run.control(DispatcherEpoch(epoch=2**63 - 1, dispatcher_id="x"))
    run.control(Grant(grant_id="1.1", epoch=10**9, worker_id="x", partition=0, start_offset=0))
    run.control(Stopped(epoch=7))
    run.send(*invented(0, trainer), *invented(1, trainer))
    turn_until_version(trainer, 1)


def test_any_number_of_samples_that_nobody_ordered_is_no_flood(run: FakeRun, trainer: Trainer) -> None:
    run.announce()
    run.write(*(a_rollout(group, weights_sha256="0" * 64) for group in range(10, 160)))
    turn_until_judged(trainer, 150)
    run.send(*invented(0, trainer), *invented(1, trainer))
    turn_until_version(trainer, 1)


@pytest.mark.engine
@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"token_ids": int32_array([1, 23])}, r"token_ids[1] is 23, outside"),
        ({"prompt_token_ids": int32_array([-1])}, "prompt_token_ids[0] is -1"),
        ({"prompt_token_ids": int32_array([1] * 3000)}, "the context has 2048"),
    ],
)
def test_tokens_that_the_model_cannot_take_are_dead_and_training_goes_on(
    changes: dict[str, Any], said: str, run: FakeRun, tmp_path: Path, run_topics: RunTopics
) -> None:
    settings = trainer_settings(tmp_path, run_topics, make_model(tmp_path / "model"))
    engine = NaiveEngine(optimizer=settings.optimizer, num_optimizer_steps=6)
    with start_trainer(settings, run.broker, Metrics(), engine) as trainer:
        good = a_rollout(0, 0, weights_sha256=trainer.ledger.weights[0])
        if "token_ids" in changes:
            good = a_rollout_of_length(2, trainer)
        run.send(replace(good, **changes))
        turn_until_judged(trainer, 1)
        (letter,) = letters(run)
        assert said in letter.reason
        run.send(a_rollout(0, 0, weights_sha256=trainer.ledger.weights[0], attempt=1))
        run.send(a_rollout(0, 1, weights_sha256=trainer.ledger.weights[0]), *invented(1, trainer))
        turn_until_version(trainer, 1)


def a_rollout_of_length(length: int, trainer: Trainer) -> Sample:
    """The first attempt at group 0, replica 0, so long."""
    good = a_rollout(0, 0, weights_sha256=trainer.ledger.weights[0])
    (segment,) = good.segments
    return replace(
        good,
        token_ids=good.token_ids.repeat(length)[:length],
        behaviour_logprobs=good.behaviour_logprobs.repeat(length)[:length],
        loss_mask=good.loss_mask.repeat(length)[:length],
        segments=(replace(segment, end=length),),
    )
