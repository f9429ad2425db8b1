"""Samples of several sequences through a trainer: trained once each, audited, trained again, and read by people."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest
from support.forked_samples import a_session
from support.recorded_steps import recording_of, replayed
from support.small_training import (
    FakeRun,
    a_rollout,
    dispositions,
    trainer_settings,
    turn_until,
    turn_until_version,
)

from consumers.audit.auditor import audit_run
from consumers.lineage import Lineage
from consumers.trained_samples import sample_columns, trained_samples
from consumers.verification.pieces import pieces_of
from rollog.kernel.metrics import Metrics
from rollog.kernel.weights import WeightsStore
from rollog.settings.run import RunConfig
from rollog.settings.training import AlgorithmConfig
from schemas import Disposition, Fork, LedgerRecord, Sample, Segment, Step
from trainer.role import training_engine
from trainer.startup import start_trainer

if TYPE_CHECKING:
    from pathlib import Path

    from consumers.audit.findings import Check
    from rollog.kernel.broker.topics import RunTopics
    from trainer.loop import Trainer
    from trainer.settings import TrainerSettings

pytestmark = pytest.mark.engine


def a_session_of_the_run(trainer: Trainer, group: int, replica: int, *, version: int) -> Sample:
    """Sequence 0 is of the newest version, its forks are of `version`."""
    made = a_session(group, replica, seed=9, turn_rewards=replica > 0)
    identity = a_rollout(group, replica, weights_sha256="")
    newest = trainer.ledger.version
    return replace(
        made,
        seed=identity.seed,
        task_id=identity.task_id,
        segments=segments_by(trainer, newest, made),
        forks=tuple(replace(fork, segments=segments_by(trainer, version, fork)) for fork in made.forks),
    )


def segments_by(trainer: Trainer, version: int, row: Sample | Fork) -> tuple[Segment, ...]:
    digest = trainer.ledger.weights[version][:16]
    return (Segment(version=version, weights_digest=digest, start=0, end=len(row.token_ids)),)


def train_two_steps(run: FakeRun, settings: TrainerSettings) -> None:
    with start_trainer(settings, run.broker, Metrics(), training_engine(settings)) as trainer:
        for step in range(2):
            for group in (2 * step, 2 * step + 1):
                run.send(*(a_session_of_the_run(trainer, group, replica, version=0) for replica in range(2)))
            turn_until_version(trainer, step + 1)
        run.stop()
        turn_until(trainer, lambda: trainer.ledger.is_closed, "closed")


@pytest.fixture
def settings(tmp_path: Path, run_topics: RunTopics, model_path: str) -> TrainerSettings:
    return trainer_settings(
        tmp_path,
        run_topics,
        model_path,
        algorithm=AlgorithmConfig(aggregation="sequence_mean"),
        run_config=RunConfig(num_steps=2, close_timeout_seconds=30.0),
    )


def steps(records: list[LedgerRecord]) -> list[Step]:
    return [record.body for record in records if isinstance(record.body, Step)]


def check(checks: list[Check], name: str) -> Check:
    return next(each for each in checks if each.name == name)


def test_sessions_are_trained_audited_and_trained_again(
    run: FakeRun, settings: TrainerSettings, tmp_path: Path
) -> None:
    train_two_steps(run, settings)
    samples = list(run.sent.values())
    num_sequences = [sum(1 + len(sample.forks) for sample in samples[first : first + 4]) for first in (0, 4)]
    assert min(num_sequences) > 4

    assert set(dispositions(run).values()) == {Disposition.TRAINED}
    first, second = steps(run.ledger())
    assert (first.num_samples, second.num_samples) == (4, 4)
    for step, number in zip((first, second), num_sequences, strict=True):
        named = sorted(position for part in step.plan for position in part.positions)
        assert named == list(range(number))
        assert step.statistics["sequences_per_sample"] == number / 4
    assert first.lags == {"0": 4}
    old = sum(bool(sample.forks) for sample in samples[4:])
    assert second.lags == {"0": 4 - old, "1": old} if old < 4 else {"1": 4}
    assert first.num_tokens == sum(sample.num_sampled_tokens for sample in samples[:4])

    report = audit_run(run.broker, run.topics, WeightsStore(settings.weights_uri), settles_within_seconds=0.0)
    assert [finding for each in report.checks for finding in each.findings] == []
    assert check(list(report.checks), "I11, I12").num_checked == sum(num_sequences)
    assert check(list(report.checks), "I6").num_checked == 2

    _, again = replayed(recording_of(run.broker, settings, tmp_path / "downloads"), 0, 2)
    assert [step.weights_sha256 for step in again] == [step.weights_sha256 for step in (first, second)]


def test_readers_show_a_session_as_one_sample_with_its_forks(run: FakeRun, settings: TrainerSettings) -> None:
    train_two_steps(run, settings)
    sent = {sample.sample_id: sample for sample in run.sent.values()}
    rows = list(
        trained_samples(
            run.broker,
            run.topics,
            WeightsStore(settings.weights_uri),
            advantages=lambda groups, _: [[None] * len(group) for group in groups],
        )
    )
    assert sorted(row["sample_id"] for row in rows) == sorted(sent)
    for row in rows:
        assert row.keys() == sample_columns.keys()
        sample = sent[row["sample_id"]]
        whole = [row["prompt_token_ids"] + row["token_ids"]]
        for parent, shared, context, own in zip(
            row["fork_parents"], row["fork_shared"], row["fork_contexts"], row["fork_token_ids"], strict=True
        ):
            whole.append(whole[parent][:shared] + context + own)
        assert whole == [
            np.concatenate((each.prompt_token_ids, each.token_ids)).tolist() for each in sample.rows()
        ]
        assert row["turn_sequences"] == [turn.sequence for turn in sample.turns]
    forked = next(sample for sample in sent.values() if sample.forks)
    (record,) = Lineage(run.broker, run.topics).sample(forked.sample_id)["records"]
    assert [fork["shared"] for fork in record["forks"]] == [fork.shared for fork in forked.forks]
    assert len(record["turns"]) == len(forked.turns)


def test_a_verification_compares_each_trained_token_of_each_sequence_once() -> None:
    for replica in range(8):
        sample = a_session(1, replica)
        pieces = pieces_of(sample, 0, 3)
        assert sum(piece.num_compared for piece in pieces) == sum(
            int(np.count_nonzero(row.loss_mask)) for row in sample.rows()
        )
        for piece in pieces:
            row = sample.rows()[piece.sequence]
            assert piece.prompt_token_ids.tolist() == row.prompt_token_ids.tolist()
            assert piece.recorded[piece.is_compared].tolist() == (
                row.behaviour_logprobs[: len(piece.token_ids)][piece.is_compared].tolist()
            )
