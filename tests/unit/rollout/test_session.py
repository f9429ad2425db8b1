"""The worker's rules, turned by hand."""

from __future__ import annotations

import pytest
from support.builders import a_task
from support.session_driver import Turner, a_grant, a_notice, an_evaluation, endings, started, worker_id

from producers.rollout.actions import (
    Interrupt,
    Leave,
    Load,
    ReadTasks,
    Start,
    StopReading,
)
from schemas import (
    Cancel,
    CancelReason,
    DispatcherEpoch,
    Fence,
    Kind,
    Revoke,
    RunClosed,
    SamplingParameters,
    Status,
    Stop,
    WorkerState,
)


def test_a_task_of_the_grant_is_started() -> None:
    turner = Turner()
    task = a_task()
    assert turner.task(task) == [Start(task)]
    assert turner.session.open_task_ids == [task.task_id]
    assert turner.session.tasks_position == 11


def test_running_training_tasks_are_named_with_the_version_they_were_begun_under() -> None:
    turner = Turner(capacity=2)
    turner.task(a_task(0))
    turner.session.on_weights(a_notice(1))
    turner.task(a_task(1))
    assert turner.session.first_versions == {"1.0": 0}
    turner.session.loaded(a_notice(1))
    assert turner.session.first_versions == {"1.0": 0, "1.100": 1}
    turner.end("1.0")
    turner.task(an_evaluation(1, version=1))
    assert turner.session.first_versions == {"1.100": 1}


def test_only_grants_for_this_worker_count_and_the_position_starts_at_the_grant() -> None:
    turner = Turner(granted=False)
    assert turner.session.on_control(a_grant(worker_id="somebody-else")) == []
    assert turner.task(a_task()) == []
    assert turner.session.on_control(a_grant(start_offset=33)) == [ReadTasks(2, 33)]
    assert turner.session.tasks_position == 33


def test_a_repeated_grant_only_raises_the_epoch() -> None:
    turner = Turner()
    turner.task(a_task())
    turner.session.on_control(DispatcherEpoch(epoch=2, dispatcher_id="d"))
    assert turner.session.on_control(a_grant(epoch=2)) == []
    assert turner.session.epoch == 2
    assert len(turner.session.open_task_ids) == 1


def test_a_grant_of_a_superseded_dispatcher_is_ignored() -> None:
    turner = Turner(granted=False)
    turner.session.on_control(DispatcherEpoch(epoch=2, dispatcher_id="d"))
    assert turner.session.on_control(a_grant(epoch=1)) == []
    assert turner.session.grant is None


def test_tasks_of_another_grant_are_ignored() -> None:
    assert Turner().task(a_task(grant_id="0.9")) == []


def test_tasks_of_a_lower_epoch_are_valid_before_the_fence_and_void_after_it() -> None:
    turner = Turner()
    assert started(turner.task(a_task(0))) == ["1.0"]
    turner.task(Fence(epoch=2))
    assert turner.task(a_task(1)) == []
    assert started(turner.task(a_task(2, epoch=2))) == ["1.200"]
    turner.task(Fence(epoch=1))
    assert turner.task(a_task(3)) == []
    assert turner.session.open_task_ids == ["1.0", "1.200"]


def test_a_task_that_arrives_twice_is_begun_once_even_after_it_ended() -> None:
    turner = Turner()
    turner.task(a_task())
    assert turner.task(a_task()) == []
    turner.end("1.0")
    assert turner.task(a_task()) == []


def test_tasks_beyond_capacity_wait_for_a_slot() -> None:
    turner = Turner(capacity=1)
    turner.task(a_task(0))
    assert turner.task(a_task(1)) == []
    assert turner.session.num_running == 1
    assert started(turner.end("1.0")) == ["1.100"]


def test_a_task_with_several_replicas_holds_all_its_slots_until_the_last_has_ended() -> None:
    turner = Turner(capacity=2)
    turner.task(a_task(0, num_replicas=2))
    assert turner.task(a_task(1, num_replicas=2)) == []
    assert started(turner.end("1.0")) == []
    assert turner.session.num_running == 2
    assert started(turner.end("1.0")) == ["1.100"]


def test_a_task_larger_than_the_capacity_runs_alone() -> None:
    turner = Turner(capacity=2)
    assert started(turner.task(a_task(0, num_replicas=5))) == ["1.0"]
    assert turner.task(a_task(1)) == []


def test_a_task_waits_for_its_version() -> None:
    turner = Turner()
    assert turner.task(a_task(0, min_version=2)) == []
    assert turner.session.on_weights(a_notice(1)) == [Load(a_notice(1))]
    assert turner.session.loaded(a_notice(1)) == []
    turner.session.on_weights(a_notice(2))
    assert started(turner.session.loaded(a_notice(2))) == ["1.0"]


def test_nothing_is_started_while_weights_are_reloaded() -> None:
    turner = Turner()
    turner.session.on_weights(a_notice(1))
    assert turner.session.state is WorkerState.RELOADING
    assert turner.task(a_task()) == []
    assert started(turner.session.loaded(a_notice(1))) == ["1.0"]


def test_versions_committed_during_a_load_are_skipped_except_the_newest() -> None:
    turner = Turner()
    assert turner.session.on_weights(a_notice(1)) == [Load(a_notice(1))]
    assert turner.session.on_weights(a_notice(2)) == []
    assert turner.session.on_weights(a_notice(3)) == []
    assert turner.session.loaded(a_notice(1)) == [Load(a_notice(3))]


def test_an_older_or_repeated_version_is_not_loaded() -> None:
    turner = Turner(served=5)
    assert turner.session.on_weights(a_notice(4)) == []
    assert turner.session.on_weights(a_notice(5)) == []


def test_segments_find_the_digest_of_every_version_put_in_service() -> None:
    turner = Turner()
    turner.session.on_weights(a_notice(1))
    assert turner.session.digest_of(1) == a_notice(1).digest
    assert turner.session.digest_of(0) == a_notice(0).digest


def test_a_held_task_is_cancelled_at_once_and_a_running_one_interrupted() -> None:
    turner = Turner(capacity=1)
    turner.task(a_task(0))
    turner.task(a_task(1))
    cancel = Cancel(task_id="1.100", epoch=1, grant_id="1.1", reason=CancelReason.SURPLUS)
    assert endings(turner.task(cancel)) == [("1.100", Status.CANCELLED, "surplus")]
    running = Cancel(task_id="1.0", epoch=1, grant_id="1.1", reason=CancelReason.STALE)
    assert turner.task(running) == [Interrupt("1.0")]
    ending = turner.session.ending_of("1.0")
    assert ending is not None
    assert (ending.status, ending.cancel_reason) == (Status.CANCELLED, "stale")
    assert turner.task(running) == []


def test_cancels_of_unknown_tasks_and_of_other_grants_are_ignored() -> None:
    turner = Turner()
    turner.task(a_task(0))
    assert turner.task(Cancel(task_id="9.9", epoch=1, grant_id="1.1", reason=CancelReason.STALE)) == []
    assert turner.task(Cancel(task_id="1.0", epoch=1, grant_id="0.1", reason=CancelReason.STALE)) == []
    turner.task(Fence(epoch=2))
    assert turner.task(Cancel(task_id="1.0", epoch=1, grant_id="1.1", reason=CancelReason.STALE)) == []


def test_a_cancelled_held_task_makes_way_for_a_reload_it_blocked() -> None:
    turner = Turner(capacity=1)
    turner.task(a_task(0))
    turner.task(an_evaluation(1, version=0))
    assert turner.session.on_weights(a_notice(1)) == []
    cancel = Cancel(task_id="1.e1", epoch=1, grant_id="1.1", reason=CancelReason.EVALUATION_GIVEN_UP)
    assert turner.task(cancel)[1:] == [Load(a_notice(1))]


def test_revoke_expires_all_open_tasks_without_starting_held_ones() -> None:
    turner = Turner(capacity=1)
    turner.task(a_task(0))
    turner.task(a_task(1))
    turner.task(a_task(2))
    actions = turner.session.on_control(Revoke(grant_id="1.1", epoch=1, worker_id=worker_id, reason="lease"))
    assert actions[0] == StopReading()
    assert Interrupt("1.0") in actions
    assert endings(actions) == [
        ("1.100", Status.EXPIRED, "revoked"),
        ("1.200", Status.EXPIRED, "revoked"),
    ]
    assert started(actions) == []
    assert turner.session.grant is None
    assert turner.task(a_task(3)) == []


def test_a_new_grant_expires_what_is_open_and_forgets_the_old_fence() -> None:
    turner = Turner()
    turner.task(Fence(epoch=5))
    turner.task(a_task(0, epoch=5))
    actions = turner.session.on_control(a_grant(grant_id="1.2", partition=3, start_offset=0))
    assert actions == [Interrupt("1.0"), ReadTasks(3, 0)]
    ending = turner.session.ending_of("1.0")
    assert ending is not None
    assert ending.status is Status.EXPIRED
    assert started(turner.task(a_task(1, grant_id="1.2"))) == ["1.100"]


def test_revoke_of_another_grant_is_ignored() -> None:
    turner = Turner()
    turner.task(a_task())
    assert (
        turner.session.on_control(Revoke(grant_id="0.1", epoch=1, worker_id=worker_id, reason="lease")) == []
    )


def test_stop_ends_open_tasks_as_cancelled_and_leaves() -> None:
    turner = Turner(capacity=1)
    turner.task(a_task(0))
    turner.task(a_task(1))
    actions = turner.task(Stop(epoch=1, grant_id="1.1"))
    assert endings(actions) == [("1.100", Status.CANCELLED, "end of run")]
    assert actions[0] == Interrupt("1.0")
    assert actions[-1] == Leave("end of run")
    assert turner.session.state is WorkerState.LEAVING
    assert turner.end("1.0") == []


def test_a_task_that_comes_while_leaving_is_cancelled() -> None:
    turner = Turner()
    turner.session.leave("stopped")
    assert endings(turner.task(a_task())) == [("1.0", Status.CANCELLED, "leaving")]


def test_the_end_of_the_run_makes_the_worker_leave_once() -> None:
    turner = Turner()
    assert turner.session.on_control(RunClosed(epoch=1)) == [Leave("the run is closed")]
    assert turner.session.on_control(RunClosed(epoch=2)) == []


def test_a_pinned_evaluation_is_finished_before_the_reload() -> None:
    turner = Turner()
    turner.task(an_evaluation(1, version=0))
    assert turner.session.on_weights(a_notice(1)) == []
    assert turner.end("1.e1") == [Load(a_notice(1))]


def test_pinned_evaluations_go_before_other_held_tasks() -> None:
    turner = Turner(capacity=1)
    turner.task(a_task(0))
    turner.task(a_task(1))
    turner.task(an_evaluation(2, version=0))
    assert started(turner.end("1.0")) == ["1.e2"]


def test_an_evaluation_of_a_version_that_is_gone_expires() -> None:
    turner = Turner(served=3)
    assert endings(turner.task(an_evaluation(1, version=2))) == [("1.e1", Status.EXPIRED, "version_gone")]


def test_an_evaluation_of_a_coming_version_makes_the_worker_stop_at_that_version() -> None:
    turner = Turner()
    turner.task(an_evaluation(1, version=2))
    turner.session.on_weights(a_notice(1))
    turner.session.on_weights(a_notice(2))
    turner.session.on_weights(a_notice(3))
    assert turner.session.loaded(a_notice(1)) == [Load(a_notice(2))]
    assert started(turner.session.loaded(a_notice(2))) == ["1.e1"]
    assert turner.end("1.e1") == [Load(a_notice(3))]


def test_a_failed_load_stops_serving_until_a_retry_succeeds() -> None:
    turner = Turner()
    turner.session.on_weights(a_notice(1))
    assert turner.session.load_failed(a_notice(1), "sha256 differs") == []
    assert turner.session.state is WorkerState.LOAD_FAILED
    assert turner.session.served is None
    assert turner.session.error is not None
    assert "sha256 differs" in turner.session.error
    assert turner.task(a_task()) == []
    assert turner.session.retry_load() == [Load(a_notice(1))]
    assert started(turner.session.loaded(a_notice(1))) == ["1.0"]
    assert turner.session.error is None


def test_a_retry_takes_the_newest_version() -> None:
    turner = Turner()
    turner.session.on_weights(a_notice(1))
    turner.session.load_failed(a_notice(1), "cut")
    assert turner.session.on_weights(a_notice(2)) == []
    assert turner.session.retry_load() == [Load(a_notice(2))]


def test_after_the_last_attempt_the_worker_leaves_with_the_error() -> None:
    turner = Turner(capacity=1)
    turner.task(a_task(0))
    turner.session.on_weights(a_notice(1))
    turner.task(a_task(1))
    for _ in range(2):
        turner.session.load_failed(a_notice(1), "cut")
        turner.session.retry_load()
    actions = turner.session.load_failed(a_notice(1), "cut")
    assert actions[0] == Interrupt("1.0")
    assert endings(actions)[0][:2] == ("1.100", Status.CANCELLED)
    leave = actions[-1]
    assert isinstance(leave, Leave)
    assert leave.error is not None


def test_a_rollout_that_takes_too_long_fails() -> None:
    turner = Turner()
    turner.task(a_task(0, timeout_seconds=5.0))
    turner.now = 4.0
    assert turner.session.end_overdue() == []
    turner.now = 5.1
    assert turner.session.end_overdue() == [Interrupt("1.0")]
    ending = turner.session.ending_of("1.0")
    assert ending is not None
    assert (ending.status, ending.error_class) == (Status.FAILED, "RolloutTimeout")
    assert turner.session.end_overdue() == []


@pytest.mark.parametrize(
    "sampling",
    [
        SamplingParameters(temperature=1.0, max_tokens=4, top_p=0.5),
        SamplingParameters(temperature=1.0, max_tokens=4, top_k=3),
        SamplingParameters(temperature=1.0, max_tokens=4, min_p=0.1),
        SamplingParameters(temperature=1.0, max_tokens=4, repetition_penalty=1.1),
        SamplingParameters(temperature=0.0, max_tokens=4),
    ],
)
def test_truncated_sampling_is_refused_for_training_only(sampling: SamplingParameters) -> None:
    turner = Turner()
    assert endings(turner.task(a_task(0, sampling=sampling))) == [("1.0", Status.FAILED, "InvalidSampling")]
    evaluation = a_task(1, sampling=sampling, kind=Kind.EVALUATION)
    assert started(turner.task(evaluation)) == ["1.100"]


def test_a_task_that_names_another_reward_function_is_refused() -> None:
    turner = Turner()
    assert endings(turner.task(a_task(0, reward="os:system"))) == [("1.0", Status.FAILED, "UnknownReward")]
    assert started(turner.task(a_task(1, reward="m:f"))) == ["1.100"]


def test_an_undecodable_task_moves_the_position_on() -> None:
    turner = Turner()
    turner.session.on_undecodable_task(40)
    assert turner.session.tasks_position == 41
