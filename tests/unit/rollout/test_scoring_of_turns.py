"""What becomes of a response of several turns when it is scored: each token is counted once."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest
from support.builders import a_task
from support.session_driver import SessionDriver

from producers.engines.ports import Generation, VersionSpan
from producers.rewards.episodes import EpisodeRewards
from producers.rewards.functions import RewardResult
from producers.rollout.outcomes import Replica
from producers.rollout.scoring import Response, ResponseScorer
from schemas import FinishReason, Status, TurnSpan

if TYPE_CHECKING:
    from schemas import Sample


def a_response(reward: RewardResult | None = None) -> Response:
    """Two turns of three tokens each; five more tokens were sampled for nothing."""
    generation = Generation(
        token_ids=np.arange(6, dtype=np.int32),
        behaviour_logprobs=np.zeros(6, dtype=np.float32),
        spans=(VersionSpan(version=0, start=0, end=6),),
        finish_reason=FinishReason.STOP,
    )
    one_turn = Response.of_one_turn(Replica(a_task(0)), generation, prompt_token_ids=(1, 2), text="said")
    turns = tuple(
        TurnSpan(number=at, sequence=0, start=3 * at, end=3 * at + 3, finish_reason=FinishReason.STOP)
        for at in range(2)
    )
    return replace(one_turn, turns=turns, wasted_tokens=5, reward=reward)


def scored(response: Response, *, late: bool = False) -> Sample:
    rewards = EpisodeRewards()
    scorer = ResponseScorer(
        SessionDriver().session,
        training_rewards=rewards,
        evaluation_rewards=rewards,
        has_late_rewards=late,
    )
    return asyncio.run(scorer.score(response))


def test_a_session_that_cannot_be_scored_wastes_each_of_its_tokens_once() -> None:
    sample = scored(a_response())
    assert (sample.status, sample.error_class) == (Status.FAILED, "RewardError")
    assert sample.wasted_tokens == 11


@pytest.mark.parametrize("late", [False, True])
def test_rewards_of_turns_that_do_not_fit_the_turns_fail_the_sample(late: bool) -> None:
    sample = scored(a_response(RewardResult(reward=1.0, turn_rewards=(0.0, 0.5, 0.5))), late=late)
    assert (sample.status, sample.error_class) == (Status.FAILED, "RewardError")
    assert "3 turn_rewards for a response of 2" in (sample.error_message or "")


@pytest.mark.parametrize("late", [False, True])
def test_a_reward_that_a_session_brings_counts_at_once(late: bool) -> None:
    sample = scored(a_response(RewardResult(reward=1.0, turn_rewards=(0.5, 0.5))), late=late)
    assert (sample.status, sample.reward, sample.awaits_reward) == (Status.FINISHED, 1.0, False)
    assert sample.wasted_tokens == 5
