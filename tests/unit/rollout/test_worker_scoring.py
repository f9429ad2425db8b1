"""The worker while a judge takes its time: the engine goes on, and every task still ends in exactly one sample."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from support.worker_thread import Stage, running, with_prompt

from schemas import Cancel, CancelReason, Kind, Revoke, Status

if TYPE_CHECKING:
    from schemas import RolloutTask


def never_scored(task: RolloutTask) -> RolloutTask:
    return with_prompt(task, reward_inputs_json='{"behaviour": "hang"}')


def test_the_one_slot_of_a_worker_is_free_while_rollouts_are_scored_until_the_bound(stage: Stage) -> None:
    settings = stage.settings(capacity=1)
    settings = replace(settings, reward=settings.reward.model_copy(update={"max_in_flight": 2}))
    with running(stage, settings=settings):
        stage.give_grant()
        stage.order(never_scored(stage.task(0)))
        stage.order(stage.task(1))
        assert [sample.group_id for sample in stage.samples(1)] == [1]
        for group in (2, 3, 4):
            stage.order(never_scored(stage.task(group)))
        # The third to be scored keeps its slot, and the one behind it waits.
        status = stage.wait_for_status(lambda status: status.num_scoring == 2 and status.num_running == 1)
        assert len(status.open_tasks) == 4
        assert stage.samples(1)[0].status is Status.FINISHED
    # It has left: what was scored, what waited for a place and what was held ended as cancelled, once.
    samples = stage.samples(5)
    assert [sample.group_id for sample in samples] == [0, 1, 2, 3, 4]
    assert [sample.status for sample in samples if sample.group_id != 1] == [Status.CANCELLED] * 4
    assert [sample.wasted_tokens > 0 for sample in samples] == [True, False, True, True, False]


@pytest.mark.parametrize("reload", ["keep", "drain", "abort"])
def test_weights_are_loaded_while_rollouts_are_scored(stage: Stage, reload: str) -> None:
    with running(stage, settings=stage.settings(reload=reload)):
        stage.give_grant()
        stage.wait_until_serving(0)
        evaluation = stage.task(1, kind=Kind.EVALUATION, pinned_version=0, evaluation="greedy")
        for task in (stage.task(0), evaluation):
            stage.order(never_scored(task))
        stage.wait_for_status(lambda status: status.num_scoring == 2)
        stage.publish(1)
        stage.wait_until_serving(1)
        stage.order(stage.task(2, min_version=1))
        sample = stage.sample()
        assert (sample.group_id, sample.segments[0].version) == (2, 1)
        status = stage.wait_for_status(lambda status: status.num_scoring == 2)
        assert status.first_versions.get(stage.task(0).task_id) == 0


def test_what_is_scored_expires_when_its_grant_is_revoked(stage: Stage) -> None:
    with running(stage):
        stage.give_grant()
        stage.order(never_scored(stage.task(0)))
        stage.wait_for_status(lambda status: status.num_scoring == 1)
        stage.send(
            stage.topics.control,
            Revoke(grant_id="1.1", epoch=1, worker_id=stage.worker_id, reason="lease expired"),
        )
        sample = stage.sample()
        assert (sample.status, sample.cancel_reason) == (Status.EXPIRED, "revoked")
        stage.wait_for_status(lambda status: status.num_scoring == 0)
    assert len(stage.samples(1)) == 1


def test_cancelling_a_task_that_is_being_scored_ends_it_at_once(stage: Stage) -> None:
    with running(stage):
        stage.give_grant()
        task = with_prompt(stage.task(0), reward_inputs_json='{"behaviour": "hang"}')
        stage.order(task)
        stage.wait_for_status(lambda status: status.num_scoring == 1)
        stage.order(Cancel(task_id=task.task_id, epoch=1, grant_id="1.1", reason=CancelReason.SURPLUS))
        sample = stage.sample()
        stage.wait_for_status(lambda status: status.num_scoring == 0)
        assert (sample.status, sample.cancel_reason) == (Status.CANCELLED, "surplus")
        assert sample.wasted_tokens > 0
