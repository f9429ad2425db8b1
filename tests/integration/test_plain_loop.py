"""With alpha = 0 a run is on-policy training: a plain loop, without dispatcher and window, gives its weights."""

from __future__ import annotations

from itertools import groupby
from statistics import mean, stdev
from typing import TYPE_CHECKING

import numpy as np
import pytest
from support.broker_topics import read_to_end
from support.exports import content_of
from support.small_training import notices
from support.threaded_run import small_settings, whole_run

from rollog.run.role_settings import trainer_settings
from schemas import Disposition, LedgerKind, Sample, Status, Step
from schemas.codec import decode_as
from trainer.role import training_engine
from trainer.step.ports import TrainingBatch, TrainingSample

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from support.threaded_run import WholeRun

    from rollog.kernel.broker.kafka import KafkaBroker
    from rollog.kernel.broker.topics import RunTopics
    from schemas import LedgerRecord

pytestmark = [pytest.mark.broker, pytest.mark.engine]


def recorded_samples(run: WholeRun) -> dict[tuple[int, int], Sample]:
    """Everything in `samples`, by place."""
    partitions = range(run.settings.broker.samples_partitions)
    return {
        (record.partition, record.offset): decode_as(Sample, record.value or b"")
        for record in read_to_end(run.broker, run.topics.samples, partitions)
    }


def grpo_samples(group: list[Sample]) -> Iterator[TrainingSample]:
    """A group with the advantages of the published formula, worked out in exact arithmetic."""
    rewards = [float(sample.reward or 0.0) for sample in group]
    for sample, reward in zip(group, rewards, strict=True):
        yield TrainingSample(
            prompt_token_ids=sample.prompt_token_ids,
            token_ids=sample.token_ids,
            behaviour_logprobs=sample.behaviour_logprobs,
            loss_mask=sample.loss_mask,
            advantage=float(np.float32((reward - mean(rewards)) / (stdev(rewards) + 1e-6))),
        )


def trained_in_order(record: LedgerRecord, samples: dict[tuple[int, int], Sample]) -> list[list[Sample]]:
    """The groups of one step, in training order."""
    members = [verdict for verdict in record.verdicts if verdict.disposition is Disposition.TRAINED]
    return [
        [samples[(verdict.partition, verdict.offset)] for verdict in group]
        for _, group in groupby(members, key=lambda verdict: verdict.group_id)
    ]


def plain_loop(run: WholeRun, steps: list[LedgerRecord]) -> list[str]:
    """The content digest of every version, from the model's files and the recorded samples alone."""
    samples = recorded_samples(run)
    engine = training_engine(trainer_settings(run.settings, run.manifest, run.home))
    engine.start(str(run.settings.model.path))
    weights = [content_of(engine)]
    for record in steps:
        assert isinstance(record.body, Step)
        groups = trained_in_order(record, samples)
        for sample in (member for group in groups for member in group):
            assert sample.status is Status.FINISHED
            assert {segment.version for segment in sample.segments} == {record.version - 1}
        batch = tuple(sample for group in groups for sample in grpo_samples(group))
        engine.train_step(TrainingBatch(samples=batch, plan=record.body.plan))
        weights.append(content_of(engine))
    engine.close()
    return weights


def test_with_alpha_zero_a_plain_loop_over_the_recorded_samples_gives_the_same_weights(
    kafka_broker: KafkaBroker, run_topics: RunTopics, tmp_path: Path
) -> None:
    settings = small_settings(tmp_path, run_topics.run, freshness={"alpha": 0.0})
    with whole_run(kafka_broker, tmp_path, settings) as run:
        ledger = run.to_its_end()
    steps = [record for record in ledger if record.kind is LedgerKind.STEP]
    published = [notice.sha256 for notice in notices(run.broker, run.topics)]
    assert len(set(published)) == 1 + settings.run.num_steps
    assert plain_loop(run, steps) == published
