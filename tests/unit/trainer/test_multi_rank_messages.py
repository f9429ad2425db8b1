"""What ranks tell each other: nothing of a batch is lost on the way, and a rank gets the tokens it trains."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest
from support.small_training import a_batch, a_training_sample

from rollog.kernel.errors import EngineError
from rollog.settings.training import AlgorithmConfig, OptimizerConfig
from schemas import MicroBatch, int32_array
from trainer.engines.multi_rank.messages import (
    RankMessage,
    batch_message,
    batch_of,
    decode_message,
    encode_message,
    of_rank,
    settings_arguments,
    settings_of,
)
from trainer.step.minibatches import rank_minibatches
from trainer.step.ports import StepSettings, TrainingBatch, TrainingSample


def through_bytes(batch: TrainingBatch) -> TrainingBatch:
    return batch_of(decode_message(encode_message(batch_message("train_step", batch))))


def same(one: TrainingSample, other: TrainingSample) -> bool:
    pairs = [(getattr(one, field.name), getattr(other, field.name)) for field in fields(one)]
    return all(
        (np.array_equal(left, right) and left.dtype == right.dtype)
        if isinstance(left, np.ndarray)
        else left == right
        for left, right in pairs
    )


def test_a_batch_comes_through_bit_for_bit() -> None:
    batch = a_batch(3, world_size=2, micro_batch_tokens=20, with_rewards=True)
    odd = replace(
        a_training_sample(1, advantage=0.1 + 0.2),
        lags=int32_array([0, 1, 1, 2]),
        reward=1 / 3,
        turn_rewards=(1 / 7, 0.1 + 0.2),
        turn_advantages=(0.3, -1 / 3),
    )
    batch = replace(batch, samples=(odd, a_training_sample(response_tokens=0), *batch.samples))
    found = through_bytes(batch)
    assert found.plan == batch.plan
    assert all(same(one, other) for one, other in zip(batch.samples, found.samples, strict=True))


def test_an_empty_batch_comes_through() -> None:
    assert through_bytes(TrainingBatch(samples=(), plan=())).samples == ()


def test_a_rank_gets_the_tokens_it_trains_and_the_denominators_of_all() -> None:
    batch = a_batch(0, world_size=2, micro_batch_tokens=20)
    algorithm = AlgorithmConfig()
    for rank in (0, 1):
        part = through_bytes(of_rank(batch, rank))
        own = {position for each in batch.plan if each.rank == rank for position in each.positions}
        for position, sample in enumerate(part.samples):
            whole = batch.samples[position]
            assert same(sample, whole) is (position in own)
            assert len(sample.token_ids) == (len(whole.token_ids) if position in own else 0)
            assert (sample.advantage, sample.group) == (whole.advantage, whole.group)
        assert rank_minibatches(part, rank, algorithm) == rank_minibatches(batch, rank, algorithm)


def test_settings_come_through() -> None:
    settings = StepSettings(
        algorithm=AlgorithmConfig(type="topr", kl_coefficient=0.1),
        optimizer=OptimizerConfig(learning_rate=1e-5 / 3),
        num_optimizer_steps=7,
    )
    call = decode_message(
        encode_message(RankMessage(name="change_settings", arguments=settings_arguments(settings)))
    )
    assert settings_of(call.arguments) == settings


@pytest.mark.parametrize(
    "data", [b"", b"what is this", encode_message(RankMessage(name="end"))[:-3], bytes(100)]
)
def test_other_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(EngineError, match="are no call"):
        decode_message(data)


def test_an_empty_micro_batch_stays_one() -> None:
    plan = (
        MicroBatch(minibatch=0, rank=0, positions=(0,)),
        MicroBatch(minibatch=0, rank=1, positions=()),
    )
    batch = TrainingBatch(samples=(a_training_sample(),), plan=plan)
    assert through_bytes(of_rank(batch, 1)).plan == plan
