"""The worker's rules, driven by hand."""

from __future__ import annotations

import pytest
from support.builders import a_task
from support.session_driver import (
    SessionDriver,
    a_grant,
    a_notice,
    an_evaluation,
    endings,
    started,
    worker_id,
)

from producers.rollout.actions import (
    Interrupt,
    Leave,
    Load,
    ReadTasks,
    Start,
    StopReading,
    Swap,
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
    driver = SessionDriver()
    task = a_task()
    assert driver.task(task) == [Start(task)]
    assert driver.session.open_task_ids == [task.task_id]
    assert driver.session.tasks_position == 11


def test_running_training_tasks_are_named_with_the_version_they_were_begun_under() -> None:
    driver = SessionDriver(capacity=2)
    driver.task(a_task(0))
    driver.session.on_weights(a_notice(1))
    driver.task(a_task(1, min_version=1))
    assert driver.session.first_versions == {"1.0": 0}
    driver.session.loaded(a_notice(1))
    assert driver.session.first_versions == {"1.0": 0, "1.100": 1}
    driver.end("1.0")
    driver.task(an_evaluation(1, version=1))
    assert driver.session.first_versions == {"1.100": 1}


def test_only_grants_for_this_worker_count_and_the_position_starts_at_the_grant() -> None:
    driver = SessionDriver(granted=False)
    assert driver.session.on_control(a_grant(worker_id="somebody-else")) == []
    assert driver.task(a_task()) == []
    assert driver.session.on_control(a_grant(grant_id="1.2", start_offset=33)) == [ReadTasks(2, 33)]
    assert driver.session.tasks_position == 33


def test_a_repeated_grant_only_raises_the_epoch() -> None:
    driver = SessionDriver()
    driver.task(a_task())
    driver.session.on_control(DispatcherEpoch(epoch=2, dispatcher_id="d"))
    assert driver.session.on_control(a_grant(epoch=2)) == []
    assert driver.session.epoch == 2
    assert len(driver.session.open_task_ids) == 1


def test_a_grant_of_a_superseded_dispatcher_is_ignored() -> None:
    driver = SessionDriver(granted=False)
    driver.session.on_control(DispatcherEpoch(epoch=2, dispatcher_id="d"))
    assert driver.session.on_control(a_grant(epoch=1)) == []
    assert driver.session.grant is None


def test_tasks_of_another_grant_are_ignored() -> None:
    assert SessionDriver().task(a_task(grant_id="0.9")) == []


def test_tasks_of_a_lower_epoch_are_valid_before_the_fence_and_void_after_it() -> None:
    driver = SessionDriver()
    assert started(driver.task(a_task(0))) == ["1.0"]
    driver.task(Fence(epoch=2))
    assert driver.task(a_task(1)) == []
    assert started(driver.task(a_task(2, epoch=2))) == ["1.200"]
    driver.task(Fence(epoch=1))
    assert driver.task(a_task(3)) == []
    assert driver.session.open_task_ids == ["1.0", "1.200"]


def test_a_task_that_arrives_twice_is_begun_once_even_after_it_ended() -> None:
    driver = SessionDriver()
    driver.task(a_task())
    assert driver.task(a_task()) == []
    driver.end("1.0")
    assert driver.task(a_task()) == []


def test_tasks_beyond_capacity_wait_for_a_slot() -> None:
    driver = SessionDriver(capacity=1)
    driver.task(a_task(0))
    assert driver.task(a_task(1)) == []
    assert driver.session.num_running == 1
    assert started(driver.end("1.0")) == ["1.100"]


def test_a_task_with_several_replicas_holds_all_its_slots_until_the_last_has_ended() -> None:
    driver = SessionDriver(capacity=2)
    driver.task(a_task(0, num_replicas=2))
    assert driver.task(a_task(1, num_replicas=2)) == []
    assert started(driver.end("1.0")) == []
    assert driver.session.num_running == 2
    assert started(driver.end("1.0")) == ["1.100"]


def test_a_task_larger_than_the_capacity_runs_alone() -> None:
    driver = SessionDriver(capacity=2)
    assert started(driver.task(a_task(0, num_replicas=5))) == ["1.0"]
    assert driver.task(a_task(1)) == []


def test_a_task_waits_for_its_version() -> None:
    driver = SessionDriver()
    assert driver.task(a_task(0, min_version=2)) == []
    assert driver.session.on_weights(a_notice(1)) == [Load(a_notice(1))]
    assert driver.session.loaded(a_notice(1)) == []
    driver.session.on_weights(a_notice(2))
    assert started(driver.session.loaded(a_notice(2))) == ["1.0"]


def test_tasks_are_started_while_a_newer_version_is_fetched_and_not_while_it_is_swapped_in() -> None:
    driver = SessionDriver()
    driver.session.on_weights(a_notice(1))
    assert driver.says() is WorkerState.SERVING
    assert started(driver.task(a_task(0))) == ["1.0"]
    assert driver.session.fetched(a_notice(1)) == [Swap(a_notice(1))]
    assert driver.says() is WorkerState.RELOADING
    assert driver.task(a_task(1)) == []
    assert started(driver.session.loaded(a_notice(1))) == ["1.100"]
    assert driver.says() is WorkerState.SERVING
    assert driver.session.first_versions == {"1.0": 0, "1.100": 1}


def test_a_task_that_needs_the_version_that_is_fetched_waits_for_it_and_holds_no_other_up() -> None:
    driver = SessionDriver(capacity=2)
    driver.session.on_weights(a_notice(1))
    assert driver.task(a_task(0, min_version=1)) == []
    assert started(driver.task(a_task(1))) == ["1.100"]
    driver.session.fetched(a_notice(1))
    assert started(driver.session.loaded(a_notice(1))) == ["1.0"]


def test_a_slot_that_becomes_free_while_a_version_is_fetched_is_used_at_once() -> None:
    driver = SessionDriver(capacity=1)
    driver.task(a_task(0))
    driver.session.on_weights(a_notice(1))
    driver.task(a_task(1))
    assert started(driver.end("1.0")) == ["1.100"]


def test_versions_committed_during_a_load_are_skipped_except_the_newest() -> None:
    driver = SessionDriver()
    assert driver.session.on_weights(a_notice(1)) == [Load(a_notice(1))]
    assert driver.session.on_weights(a_notice(2)) == []
    assert driver.session.on_weights(a_notice(3)) == []
    # What was fetched is loaded: a worker that is slower than the trainer would never come to the newest.
    assert driver.session.fetched(a_notice(1)) == [Swap(a_notice(1))]
    assert driver.session.loaded(a_notice(1)) == [Load(a_notice(3))]


def test_an_older_or_repeated_version_is_not_loaded() -> None:
    driver = SessionDriver(served=5)
    assert driver.session.on_weights(a_notice(4)) == []
    assert driver.session.on_weights(a_notice(5)) == []


def test_segments_find_the_digest_of_every_version_put_in_service() -> None:
    driver = SessionDriver()
    driver.session.on_weights(a_notice(1))
    assert driver.session.digest_of(1) == a_notice(1).digest
    assert driver.session.digest_of(0) == a_notice(0).digest


def test_a_held_task_is_cancelled_at_once_and_a_running_one_interrupted() -> None:
    driver = SessionDriver(capacity=1)
    driver.task(a_task(0))
    driver.task(a_task(1))
    cancel = Cancel(task_id="1.100", epoch=1, grant_id="1.1", reason=CancelReason.SURPLUS)
    assert endings(driver.task(cancel)) == [("1.100", Status.CANCELLED, "surplus")]
    running = Cancel(task_id="1.0", epoch=1, grant_id="1.1", reason=CancelReason.STALE)
    assert driver.task(running) == [Interrupt("1.0")]
    ending = driver.session.ending_of("1.0")
    assert ending is not None
    assert (ending.status, ending.cancel_reason) == (Status.CANCELLED, "stale")
    assert driver.task(running) == []


def test_cancels_of_unknown_tasks_and_of_other_grants_are_ignored() -> None:
    driver = SessionDriver()
    driver.task(a_task(0))
    assert driver.task(Cancel(task_id="9.9", epoch=1, grant_id="1.1", reason=CancelReason.STALE)) == []
    assert driver.task(Cancel(task_id="1.0", epoch=1, grant_id="0.1", reason=CancelReason.STALE)) == []
    driver.task(Fence(epoch=2))
    assert driver.task(Cancel(task_id="1.0", epoch=1, grant_id="1.1", reason=CancelReason.STALE)) == []


def test_a_cancelled_held_task_makes_way_for_a_reload_it_blocked() -> None:
    driver = SessionDriver(capacity=1)
    driver.task(a_task(0))
    driver.task(an_evaluation(1, version=0))
    driver.session.on_weights(a_notice(1))
    assert driver.session.fetched(a_notice(1)) == []
    cancel = Cancel(task_id="1.e1", epoch=1, grant_id="1.1", reason=CancelReason.EVALUATION_GIVEN_UP)
    assert driver.task(cancel)[1:] == [Swap(a_notice(1))]


def test_revoke_expires_all_open_tasks_without_starting_held_ones() -> None:
    driver = SessionDriver(capacity=1)
    driver.task(a_task(0))
    driver.task(a_task(1))
    driver.task(a_task(2))
    actions = driver.session.on_control(Revoke(grant_id="1.1", epoch=1, worker_id=worker_id, reason="lease"))
    assert actions[0] == StopReading()
    assert Interrupt("1.0") in actions
    assert endings(actions) == [
        ("1.100", Status.EXPIRED, "revoked"),
        ("1.200", Status.EXPIRED, "revoked"),
    ]
    assert started(actions) == []
    assert driver.session.grant is None
    assert driver.task(a_task(3)) == []


def test_a_new_grant_expires_what_is_open_and_forgets_the_old_fence() -> None:
    driver = SessionDriver()
    driver.task(Fence(epoch=5))
    driver.task(a_task(0, epoch=5))
    actions = driver.session.on_control(a_grant(grant_id="1.2", partition=3, start_offset=0))
    assert actions == [Interrupt("1.0"), ReadTasks(3, 0)]
    ending = driver.session.ending_of("1.0")
    assert ending is not None
    assert ending.status is Status.EXPIRED
    assert started(driver.task(a_task(1, grant_id="1.2"))) == ["1.100"]


def test_revoke_of_another_grant_is_ignored() -> None:
    driver = SessionDriver()
    driver.task(a_task())
    assert (
        driver.session.on_control(Revoke(grant_id="1.7", epoch=1, worker_id=worker_id, reason="lease")) == []
    )


def test_stop_ends_open_tasks_as_cancelled_and_leaves() -> None:
    driver = SessionDriver(capacity=1)
    driver.task(a_task(0))
    driver.task(a_task(1))
    actions = driver.task(Stop(epoch=1, grant_id="1.1"))
    assert endings(actions) == [("1.100", Status.CANCELLED, "end of run")]
    assert actions[0] == Interrupt("1.0")
    assert actions[-1] == Leave("end of run")
    assert driver.says() is WorkerState.LEAVING
    assert driver.end("1.0") == []


def test_a_task_that_comes_while_leaving_is_cancelled() -> None:
    driver = SessionDriver()
    driver.session.leave("stopped")
    assert endings(driver.task(a_task())) == [("1.0", Status.CANCELLED, "leaving")]


def test_the_end_of_the_run_makes_the_worker_leave_once() -> None:
    driver = SessionDriver()
    assert driver.session.on_control(RunClosed(epoch=1)) == [Leave("the run is closed")]
    assert driver.session.on_control(RunClosed(epoch=1)) == []


def test_a_pinned_evaluation_is_finished_before_the_swap_and_others_start_meanwhile() -> None:
    driver = SessionDriver()
    driver.task(an_evaluation(1, version=0))
    assert driver.session.on_weights(a_notice(1)) == [Load(a_notice(1))]
    assert driver.session.fetched(a_notice(1)) == []
    assert driver.says() is WorkerState.SERVING
    assert started(driver.task(a_task(0))) == ["1.0"]
    assert driver.end("1.e1") == [Swap(a_notice(1))]


def test_a_pinned_evaluation_that_comes_while_a_version_is_fetched_is_made_under_the_served_one() -> None:
    driver = SessionDriver()
    driver.session.on_weights(a_notice(1))
    assert started(driver.task(an_evaluation(1, version=0))) == ["1.e1"]
    assert driver.session.fetched(a_notice(1)) == []
    assert driver.end("1.e1") == [Swap(a_notice(1))]


def test_a_pinned_evaluation_that_comes_during_the_swap_expires() -> None:
    driver = SessionDriver()
    driver.session.on_weights(a_notice(1))
    driver.session.fetched(a_notice(1))
    assert driver.task(an_evaluation(1, version=0)) == []
    assert endings(driver.session.loaded(a_notice(1))) == [("1.e1", Status.EXPIRED, "version_gone")]


def test_a_version_that_comes_while_another_one_waits_for_evaluations_is_fetched_in_its_place() -> None:
    driver = SessionDriver()
    driver.task(an_evaluation(1, version=0))
    driver.session.on_weights(a_notice(1))
    driver.session.fetched(a_notice(1))
    assert driver.session.on_weights(a_notice(2)) == [Load(a_notice(2))]
    # It is gone already, so the worker waits for the one on its way, and no longer: that one is loaded.
    assert driver.end("1.e1") == []
    driver.session.on_weights(a_notice(3))
    assert driver.session.fetched(a_notice(2)) == [Swap(a_notice(2))]


def test_pinned_evaluations_go_before_other_held_tasks() -> None:
    driver = SessionDriver(capacity=1)
    driver.task(a_task(0))
    driver.task(a_task(1))
    driver.task(an_evaluation(2, version=0))
    assert started(driver.end("1.0")) == ["1.e2"]


def test_an_evaluation_of_a_version_that_is_gone_expires() -> None:
    driver = SessionDriver(served=3)
    assert endings(driver.task(an_evaluation(1, version=2))) == [("1.e1", Status.EXPIRED, "version_gone")]


def test_an_evaluation_of_a_coming_version_makes_the_worker_stop_at_that_version() -> None:
    driver = SessionDriver()
    driver.task(an_evaluation(1, version=2))
    driver.session.on_weights(a_notice(1))
    driver.session.on_weights(a_notice(2))
    driver.session.on_weights(a_notice(3))
    assert driver.session.loaded(a_notice(1)) == [Load(a_notice(2))]
    driver.session.fetched(a_notice(2))
    actions = driver.session.loaded(a_notice(2))
    assert started(actions) == ["1.e1"]
    assert actions[1:] == [Load(a_notice(3))]
    assert driver.session.fetched(a_notice(3)) == []
    assert driver.end("1.e1") == [Swap(a_notice(3))]


def test_a_failed_fetch_leaves_the_served_version_in_service_and_is_tried_again() -> None:
    driver = SessionDriver()
    driver.session.on_weights(a_notice(1))
    assert driver.session.fetch_failed(a_notice(1), "sha256 differs") == []
    assert driver.says() is WorkerState.SERVING
    assert driver.session.served == a_notice(0)
    assert driver.session.error is not None
    assert "sha256 differs" in driver.session.error
    assert started(driver.task(a_task())) == ["1.0"]
    # Not before its time, whatever happens.
    assert driver.session.on_weights(a_notice(2)) == []
    assert driver.session.retry_load() == [Load(a_notice(2))]
    driver.session.fetched(a_notice(2))
    driver.session.loaded(a_notice(2))
    assert driver.session.error is None


def test_a_fetch_that_fails_after_a_failed_swap_brings_nothing_back() -> None:
    driver = SessionDriver()
    driver.session.on_weights(a_notice(1))
    driver.session.fetched(a_notice(1))
    driver.session.load_failed(a_notice(1), "does not fit")
    driver.session.retry_load()
    assert driver.says() is WorkerState.RELOADING
    driver.session.fetch_failed(a_notice(1), "404")
    assert driver.says() is WorkerState.LOAD_FAILED
    assert driver.session.served is None
    assert driver.task(a_task()) == []


def test_fetches_and_swaps_that_fail_count_together_until_one_version_is_loaded() -> None:
    driver = SessionDriver()
    for _ in range(2):
        driver.session.on_weights(a_notice(1))
        driver.session.fetch_failed(a_notice(1), "404")
        driver.session.retry_load()
    driver.session.fetched(a_notice(1))
    driver.session.loaded(a_notice(1))
    driver.session.on_weights(a_notice(2))
    driver.session.fetch_failed(a_notice(2), "404")
    driver.session.retry_load()
    driver.session.fetched(a_notice(2))
    driver.session.load_failed(a_notice(2), "does not fit")
    driver.session.retry_load()
    (leave,) = driver.session.fetch_failed(a_notice(2), "404")
    assert isinstance(leave, Leave)
    assert leave.error == "version 2 could not be fetched: 404"


def test_a_failed_load_stops_serving_until_a_retry_succeeds() -> None:
    driver = SessionDriver()
    driver.session.on_weights(a_notice(1))
    assert driver.session.load_failed(a_notice(1), "sha256 differs") == []
    assert driver.says() is WorkerState.LOAD_FAILED
    assert driver.session.served is None
    assert driver.session.error is not None
    assert "sha256 differs" in driver.session.error
    assert driver.task(a_task()) == []
    assert driver.session.retry_load() == [Load(a_notice(1))]
    assert started(driver.session.loaded(a_notice(1))) == ["1.0"]
    assert driver.session.error is None


def test_a_retry_takes_the_newest_version() -> None:
    driver = SessionDriver()
    driver.session.on_weights(a_notice(1))
    driver.session.load_failed(a_notice(1), "cut")
    assert driver.session.on_weights(a_notice(2)) == []
    assert driver.session.retry_load() == [Load(a_notice(2))]


def test_after_the_last_attempt_the_worker_leaves_with_the_error() -> None:
    driver = SessionDriver(capacity=1)
    driver.task(a_task(0))
    driver.session.on_weights(a_notice(1))
    driver.task(a_task(1))
    for _ in range(2):
        driver.session.load_failed(a_notice(1), "cut")
        driver.session.retry_load()
    actions = driver.session.load_failed(a_notice(1), "cut")
    assert actions[0] == Interrupt("1.0")
    assert endings(actions)[0][:2] == ("1.100", Status.CANCELLED)
    leave = actions[-1]
    assert isinstance(leave, Leave)
    assert leave.error is not None


def test_a_rollout_that_takes_too_long_fails() -> None:
    driver = SessionDriver()
    driver.task(a_task(0, timeout_seconds=5.0))
    driver.now = 4.0
    assert driver.session.end_overdue() == []
    driver.now = 5.1
    assert driver.session.end_overdue() == [Interrupt("1.0")]
    ending = driver.session.ending_of("1.0")
    assert ending is not None
    assert (ending.status, ending.error_class) == (Status.FAILED, "RolloutTimeout")
    assert driver.session.end_overdue() == []


def test_the_time_in_which_a_worker_was_suspended_counts_against_no_rollout() -> None:
    driver = SessionDriver()
    driver.task(a_task(0, timeout_seconds=5.0))
    driver.now = 64.0
    driver.session.was_suspended(60.0)
    assert driver.session.end_overdue() == []
    driver.now = 65.1
    assert driver.session.end_overdue() == [Interrupt("1.0")]


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
    driver = SessionDriver()
    assert endings(driver.task(a_task(0, sampling=sampling))) == [("1.0", Status.FAILED, "InvalidSampling")]
    evaluation = a_task(1, sampling=sampling, kind=Kind.EVALUATION)
    assert started(driver.task(evaluation)) == ["1.100"]


def test_a_task_that_names_another_reward_function_is_refused() -> None:
    driver = SessionDriver()
    assert endings(driver.task(a_task(0, reward="os:system"))) == [("1.0", Status.FAILED, "UnknownReward")]
    assert started(driver.task(a_task(1, reward="m:f"))) == ["1.100"]


def test_an_undecodable_task_moves_the_position_on() -> None:
    driver = SessionDriver()
    driver.session.on_undecodable_task(40)
    assert driver.session.tasks_position == 41
