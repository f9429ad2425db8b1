"""A worker of a run whose rewards come late: it scores evaluations alone."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from support.worker_thread import reward_function, running

from rollog.settings.generation import RewardConfig
from schemas import Kind, Status

if TYPE_CHECKING:
    from support.worker_thread import Stage


def test_samples_of_training_wait_for_their_reward_and_evaluations_have_theirs(stage: Stage) -> None:
    reward = RewardConfig(function=reward_function, num_processes=0, late=True)
    with running(stage, settings=replace(stage.settings(), reward=reward)):
        stage.give_grant()
        stage.wait_until_serving(0)
        stage.order(stage.task(3))
        sample = stage.sample()
        evaluation = stage.task(
            0, task_id="1.e0", kind=Kind.EVALUATION, pinned_version=0, evaluation="greedy"
        )
        stage.order(evaluation)
        (evaluated,) = stage.samples(1, stage.topics.evaluations)
    assert (sample.status, sample.reward, sample.awaits_reward) == (Status.FINISHED, None, True)
    assert sample.num_tokens > 0
    assert (evaluated.reward, evaluated.awaits_reward) == (11.0, False)
