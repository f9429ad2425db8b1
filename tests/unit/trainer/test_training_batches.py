"""From trained groups to what an engine gets."""

from __future__ import annotations

from typing import Any

import pytest
from support.builders import a_sample

from rollog.kernel.errors import ConfigError, DataError
from rollog.settings.training import AlgorithmConfig, TrainerConfig
from schemas import FinishReason, Segment, float32_array, int32_array, uint8_array
from trainer.step.batch import plan_groups, training_batch
from trainer.step.collation import collate


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


def test_a_baseline_of_the_batch_compares_over_groups() -> None:
    groups = [[a_sample(0, 0, reward=1.0), a_sample(0, 1, reward=1.0)], [a_sample(1, 0, reward=0.0)]]
    batch = training_batch(groups, (), AlgorithmConfig(type="ppo", normalize_std=False), 1.0)
    assert [sample.advantage for sample in batch.samples] == pytest.approx([1 / 3, 1 / 3, -2 / 3])
    assert [sample.group for sample in batch.samples] == [0, 0, 1]
    assert [sample.reward for sample in batch.samples] == [1.0, 1.0, 0.0]


def of_turns(*rewards: float) -> dict[str, Any]:
    """Two turns of two tokens and one, with a token of the environment between them."""
    return {
        "token_ids": int32_array([5, 6, 7, 8]),
        "behaviour_logprobs": float32_array([-1.0] * 4),
        "loss_mask": uint8_array([1, 1, 0, 1]),
        "segments": (Segment(version=0, weights_digest="0" * 16, start=0, end=4),),
        "turn_rewards": rewards,
    }


def test_each_turn_has_the_advantage_of_its_reward_and_of_those_after_it() -> None:
    groups = [[a_sample(0, 0, reward=1.0, **of_turns(1.0, 0.0)), a_sample(0, 1, reward=0.0)]]
    batch = training_batch(groups, (), AlgorithmConfig(normalize_std=False), 1.0)
    first, second = batch.samples
    assert (first.reward, first.turn_rewards) == (1.0, (1.0, 0.0))
    assert first.turn_advantages == pytest.approx((1.0 - 2 / 3, -1 / 3))
    assert second.advantage == pytest.approx(-1 / 3)
    assert second.turn_advantages == ()
    advantages_BR = collate(batch.samples).advantages_BR
    assert advantages_BR[0][[0, 1, 3]].tolist() == pytest.approx([1 / 3, 1 / 3, -1 / 3])
    assert advantages_BR[1, :3].tolist() == pytest.approx([-1 / 3] * 3)


def test_what_a_response_loses_for_its_length_its_last_turn_loses() -> None:
    algorithm = AlgorithmConfig(
        advantage="return",
        normalize_std=False,
        max_response_tokens=4,
        overlong_share=0.5,
        overlong_penalty=0.8,
    )
    batch = training_batch([[a_sample(0, 0, reward=1.0, **of_turns(1.0, 0.5))]], (), algorithm, 1.0)
    # Three of its four tokens are the policy's: 0.8 x (3 - 2) / 2 is lost.
    assert batch.samples[0].turn_rewards == pytest.approx((1.0, 0.1))


def test_a_turn_that_nothing_predicts_is_left_out() -> None:
    changes = of_turns(1.0, 0.5) | {
        "loss_mask": uint8_array([1, 0, 1, 1]),
        "prompt_token_ids": int32_array(),
    }
    algorithm = AlgorithmConfig(advantage="return", normalize_std=False)
    batch = training_batch([[a_sample(0, 0, reward=1.0, **changes)]], (), algorithm, 1.0)
    assert batch.samples[0].turn_rewards == (0.5,)
    assert collate(batch.samples).advantages_BR[0][[2, 3]].tolist() == [0.5, 0.5]


def test_over_long_responses_lose_reward_before_advantages_are_computed() -> None:
    groups = [[a_sample(0, 0, reward=1.0), a_sample(0, 1, reward=1.0, **of_length(9))]]
    algorithm = AlgorithmConfig(
        type="dapo", normalize_std=False, max_response_tokens=10, overlong_share=0.2, overlong_penalty=0.8
    )
    batch = training_batch(groups, (), algorithm, 1.0)
    assert [sample.reward for sample in batch.samples] == pytest.approx([1.0, 0.6])
    assert [sample.advantage for sample in batch.samples] == pytest.approx([0.2, -0.2])


def test_without_the_length_of_the_longest_response_nothing_can_be_over_long() -> None:
    with pytest.raises(ConfigError, match="max_response_tokens"):
        training_batch([[a_sample()]], (), AlgorithmConfig(type="dapo"), 1.0)


def test_each_token_has_the_lag_of_its_segment() -> None:
    segments = (
        Segment(version=3, weights_digest="a" * 16, start=0, end=1),
        Segment(version=5, weights_digest="b" * 16, start=1, end=3),
    )
    groups = [[a_sample(segments=segments)]]
    lags = training_batch(groups, (), AlgorithmConfig(), 1.0, version=6).samples[0].lags
    assert lags is not None
    assert lags.tolist() == [2, 0, 0]
    assert training_batch(groups, (), AlgorithmConfig(), 1.0).samples[0].lags is None


def of_length(num_tokens: int) -> dict[str, Any]:
    return {
        "token_ids": int32_array([1] * num_tokens),
        "behaviour_logprobs": float32_array([-1.0] * num_tokens),
        "loss_mask": uint8_array([1] * num_tokens),
        "segments": (Segment(version=0, weights_digest="a" * 16, start=0, end=num_tokens),),
    }


def test_truncated_responses_count_in_the_baseline_and_in_nothing_else() -> None:
    cut = a_sample(0, 1, finish_reason=FinishReason.LENGTH)
    groups = [[a_sample(0, 0), cut]]
    plain = training_batch(groups, (), AlgorithmConfig(normalize_std=False), 1.0)
    masked = training_batch(groups, (), AlgorithmConfig(normalize_std=False, mask_truncated=True), 1.0)

    assert [sample.advantage for sample in masked.samples] == [sample.advantage for sample in plain.samples]
    assert [int(sample.loss_mask.sum()) for sample in plain.samples] == [3, 3]
    assert [int(sample.loss_mask.sum()) for sample in masked.samples] == [3, 0]


def test_truncated_turns_count_in_the_baseline_and_in_nothing_else() -> None:
    cut = a_sample(0, 1, finish_reason=FinishReason.LENGTH, **of_turns(1.0, 2.0))
    groups = [[a_sample(0, 0, **of_turns(0.0, 1.0)), cut]]
    algorithm = AlgorithmConfig(normalize_std=False)
    plain = training_batch(groups, (), algorithm, 1.0)
    masked = training_batch(groups, (), algorithm.model_copy(update={"mask_truncated": True}), 1.0)

    assert masked.samples[0].turn_advantages == plain.samples[0].turn_advantages
    assert not collate(masked.samples).mask_BR[1].any()
