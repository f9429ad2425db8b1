"""Samples of several sequences in a batch, by hand: rows, turns, rewards, denominators, and what ranks are told."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
from support.builders import a_sample, a_segment
from support.forked_samples import a_session, a_turn

from rollog.settings.training import AlgorithmConfig, TrainerConfig
from schemas import FinishReason, Fork, Sample, float32_array, int32_array, uint8_array
from trainer.engines.multi_rank.messages import (
    batch_message,
    batch_of,
    decode_message,
    encode_message,
    of_rank,
)
from trainer.ledger.records import sample_statistics
from trainer.step.batch import plan_groups, training_batch
from trainer.step.collation import collate
from trainer.step.kl_rewards import kl_shaped_rewards
from trainer.step.minibatches import rank_minibatches
from trainer.step.sequences import positions_by_sample, rewards_of_tokens

returns = AlgorithmConfig(advantage="return", normalize_std=False, max_response_tokens=8)


def a_forked_sample(group: int = 0, replica: int = 0, **changes: Any) -> Sample:
    """Turns 0 and 2 in sequence 0, with a token of context between; turn 1, two tokens, in a fork."""
    fork = Fork(
        parent=0,
        shared=5,
        context=int32_array([8]),
        token_ids=int32_array([5, 6]),
        behaviour_logprobs=float32_array([-1, -2]),
        loss_mask=uint8_array([1, 1]),
        segments=(a_segment(0, 0, 2),),
    )
    values: dict[str, Any] = {
        "loss_mask": uint8_array([1, 0, 1]),
        "segments": (a_segment(1),),
        "forks": (fork,),
        "turns": (a_turn(0, 0, 0, 1), a_turn(1, 1, 0, 2), a_turn(2, 0, 2, 3)),
    }
    return a_sample(group, replica, **(values | changes))


def test_every_sequence_is_a_row_that_knows_its_sample() -> None:
    groups = [[a_forked_sample(0, 0), a_sample(0, 1)], [a_forked_sample(1, 0)]]
    batch = training_batch(groups, (), returns, 1.0, version=3)
    assert [row.sample for row in batch.samples] == [0, 0, 1, 2, 2]
    assert [row.group for row in batch.samples] == [0, 0, 0, 1, 1]
    assert [row.num_sample_tokens for row in batch.samples] == [4, 4, 3, 4, 4]
    assert batch.samples[1].prompt_token_ids.tolist() == [1, 2, 3, 4, 5, 8]
    assert [None if row.lags is None else row.lags.tolist() for row in batch.samples[:2]] == [
        [1, 1, 1],
        [2, 2],
    ]
    assert positions_by_sample(batch) == [[0, 1], [2], [3, 4]]
    assert collate(batch.samples).sample_tokens_B.tolist() == [4, 4, 3, 4, 4]


def test_credit_of_turns_goes_by_number_across_forks() -> None:
    sample = a_forked_sample(turn_rewards=(1.0, 10.0, 100.0), reward=111.0)
    own, fork = training_batch([[sample]], (), returns, 1.0).samples
    advantages_BR = collate([own, fork]).advantages_BR
    assert advantages_BR[0][[0, 2]].tolist() == [111.0, 100.0]
    assert advantages_BR[1][:2].tolist() == [110.0, 110.0]


def test_along_a_sequence_rewards_of_others_come_with_the_turn_before_them() -> None:
    rewards = (1.0, 10.0, 100.0)
    assert rewards_of_tokens(int32_array([0, 2]), rewards).tolist() == [11.0, 100.0]
    assert rewards_of_tokens(int32_array([1, 1]), rewards).tolist() == [0.0, 110.0]
    assert rewards_of_tokens(int32_array([2]), rewards).tolist() == [100.0]
    assert rewards_of_tokens(int32_array(), rewards).tolist() == []


def test_a_turn_that_is_not_trained_keeps_its_number_and_its_reward() -> None:
    turns = (a_turn(0, 0, 0, 1), a_turn(1, 1, 0, 2, untrained="superseded"), a_turn(2, 0, 2, 3))
    fork = replace(a_forked_sample().forks[0], loss_mask=uint8_array([0, 0]))
    sample = a_forked_sample(turns=turns, forks=(fork,), turn_rewards=(1.0, 10.0, 100.0))
    own, other = training_batch([[sample]], (), returns, 1.0).samples
    assert (own.num_sample_tokens, other.num_sample_tokens) == (2, 2)
    assert collate([own, other]).advantages_BR[0][[0, 2]].tolist() == [111.0, 100.0]
    assert not collate([own, other]).mask_BR[1].any()


def test_turns_with_nothing_between_them_stay_two() -> None:
    turns = (a_turn(0, 0, 0, 2), a_turn(1, 0, 2, 3))
    sample = a_sample(turns=turns, turn_rewards=(1.0, 10.0))
    (row,) = training_batch([[sample]], (), returns, 1.0).samples
    assert collate([row]).advantages_BR[0].tolist() == [11.0, 11.0, 10.0]


def test_of_a_truncated_sample_no_sequence_is_trained_where_that_is_wanted() -> None:
    sample = a_forked_sample(finish_reason=FinishReason.LENGTH, turn_rewards=(1.0, 10.0, 100.0))
    algorithm = returns.model_copy(update={"mask_truncated": True})
    batch = training_batch([[sample]], (), algorithm, 1.0)
    assert [row.loss_mask.tolist() for row in batch.samples] == [[0, 0, 0], [0, 0]]
    assert [row.num_sample_tokens for row in batch.samples] == [0, 0]


def test_what_is_lost_for_length_counts_the_tokens_of_all_sequences() -> None:
    algorithm = returns.model_copy(
        update={"max_response_tokens": 5, "overlong_share": 0.4, "overlong_penalty": 0.8}
    )
    own, fork = training_batch([[a_forked_sample(reward=1.0)]], (), algorithm, 1.0).samples
    # Four tokens were sampled: 0.8 x (4 - 3) / 2 is lost.
    assert own.reward == fork.reward == pytest.approx(0.6)


def test_the_divergence_of_all_sequences_comes_off_the_last_turn() -> None:
    algorithm = returns.model_copy(update={"kl_coefficient": 0.1, "kl_in": "reward"})
    groups = [[a_forked_sample(0, 0, turn_rewards=(1.0, 10.0, 100.0)), a_sample(0, 1, reward=1.0)]]
    batch = training_batch(groups, (), algorithm, 1.0)
    own, fork, other = kl_shaped_rewards(batch, {0: 2.0, 1: 3.0, 2: 4.0}, algorithm).samples
    assert own.turn_rewards == fork.turn_rewards == pytest.approx((1.0, 10.0, 99.5))
    assert own.turn_advantages == fork.turn_advantages == pytest.approx((110.5, 109.5, 99.5))
    assert other.reward == pytest.approx(0.6)


def test_denominators_count_samples_whoever_trains_their_sequences() -> None:
    groups = [[a_session(group, replica) for replica in range(3)] for group in range(2)]
    plan = plan_groups(groups, TrainerConfig(num_minibatches=1), world_size=2, seed=0)
    batch = training_batch(groups, plan, returns, 1.0)
    assert len(batch.samples) > 6
    for rank in (0, 1):
        (minibatch,) = rank_minibatches(of_rank(batch, rank), rank, returns)
        assert minibatch.denominators.num_samples == 6
        assert minibatch.denominators.num_tokens == sum(
            int(np.count_nonzero(row.loss_mask)) for row in batch.samples
        )


def test_ranks_are_told_of_samples_and_turns_bit_for_bit() -> None:
    groups = [[a_session(0, replica, turn_rewards=replica > 0) for replica in range(3)]]
    plan = plan_groups(groups, TrainerConfig(), world_size=2, seed=0)
    batch = training_batch(groups, plan, returns, 1.0, version=4)
    found = batch_of(decode_message(encode_message(batch_message("train_step", batch))))
    for here, there in zip(batch.samples, found.samples, strict=True):
        for field in fields(here):
            left, right = getattr(here, field.name), getattr(there, field.name)
            assert np.array_equal(left, right) if isinstance(left, np.ndarray) else left == right, field.name


def test_a_step_says_how_many_sequences_a_sample_has_and_what_context_a_trained_token_costs() -> None:
    figures = sample_statistics([a_forked_sample(), a_sample(0, 1)])
    assert figures["sequences_per_sample"] == 1.5
    # Read are 7 and 8 ids of the first sample, 7 of the second; trained are 4 and 3.
    assert figures["context_per_trained_token"] == pytest.approx((7 + 8 + 7 - 7) / 7)
    assert figures["response_tokens_mean"] == 3.5
