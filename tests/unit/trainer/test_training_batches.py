"""From trained groups to what an engine gets."""

from __future__ import annotations

import pytest
from builders import a_sample

from rollog.errors import DataError
from schemas import int32_array
from trainer.config import AlgorithmConfig, TrainerConfig
from trainer.training import plan_groups, training_batch


def test_samples_keep_the_training_order_and_get_the_advantage_of_their_group() -> None:
    groups = [[a_sample(0, 0), a_sample(0, 1)], [a_sample(1, 1), a_sample(1, 0)]]
    batch = training_batch(groups, (), AlgorithmConfig(normalize_std=False), 1.0)
    assert [sample.advantage for sample in batch.samples] == [-0.5, 0.5, 0.5, -0.5]
    assert batch.samples[0].behaviour_logprobs is groups[0][0].behaviour_logprobs


def test_plans_count_prompt_and_response() -> None:
    groups = [[a_sample(0, replica) for replica in range(4)]]
    plan = plan_groups(groups, TrainerConfig(micro_batch_tokens=14), world_size=1, seed=0)
    assert [len(part.positions) for part in plan] == [2, 2]


def test_a_sample_drawn_at_another_temperature_is_refused() -> None:
    with pytest.raises(DataError, match=r"temperature 0\.5.*by 1\.0"):
        training_batch([[a_sample(temperature=0.5)]], (), AlgorithmConfig(), 1.0)


def test_a_temperature_that_was_rounded_on_the_wire_is_the_same() -> None:
    training_batch([[a_sample(temperature=0.699999988)]], (), AlgorithmConfig(), 0.7)


def test_a_sample_without_reward_is_refused() -> None:
    with pytest.raises(DataError, match="has no reward"):
        training_batch([[a_sample(reward=None)]], (), AlgorithmConfig(), 1.0)


def test_the_first_token_of_all_is_not_trained_because_nothing_predicts_it() -> None:
    batch = training_batch([[a_sample(prompt_token_ids=int32_array())]], (), AlgorithmConfig(), 1.0)
    assert batch.samples[0].loss_mask.tolist() == [0, 1, 1]
