"""When a worker takes up new weights, and what becomes of the rollouts that run then: keep, drain, abort."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.builders import a_task
from support.session_driver import SessionDriver, a_notice, an_evaluation, started, worker_id

from producers.rollout.actions import Interrupt, Load, Swap
from producers.rollout.session import ReloadMode, WorkerSession
from schemas import Cancel, CancelReason, WorkerState


def test_with_keep_a_fetched_version_is_loaded_at_once_and_running_rollouts_stay() -> None:
    driver = SessionDriver()
    driver.task(a_task(0))
    driver.session.on_weights(a_notice(1))
    assert driver.session.fetched(a_notice(1)) == [Swap(a_notice(1))]


def test_a_drain_starts_no_others_once_the_version_is_here_and_waits_for_those_that_run() -> None:
    driver = SessionDriver(reload="drain")
    driver.task(a_task(0))
    assert driver.session.on_weights(a_notice(1)) == [Load(a_notice(1))]
    assert driver.says() is WorkerState.SERVING
    assert started(driver.task(a_task(1))) == ["1.100"]
    assert driver.session.fetched(a_notice(1)) == []
    assert driver.says() is WorkerState.RELOADING
    assert driver.task(a_task(2)) == []
    assert driver.end("1.0") == []
    assert driver.session.open_task_ids == ["1.100", "1.200"]
    assert driver.end("1.100") == [Swap(a_notice(1))]
    assert started(driver.session.loaded(a_notice(1))) == ["1.200"]


def test_a_drain_that_ends_while_the_file_is_fetched_swaps_when_it_is_there() -> None:
    driver = SessionDriver(reload="drain")
    driver.task(a_task(0))
    driver.session.on_weights(a_notice(1))
    assert driver.end("1.0") == []
    assert driver.session.fetched(a_notice(1)) == [Swap(a_notice(1))]


def test_a_drain_ends_with_the_version_that_is_newest_then() -> None:
    driver = SessionDriver(reload="drain")
    driver.task(a_task(0))
    driver.session.on_weights(a_notice(1))
    driver.session.fetched(a_notice(1))
    assert driver.session.on_weights(a_notice(2)) == [Load(a_notice(2))]
    driver.session.on_weights(a_notice(3))
    # The drain goes on while a newer version is fetched.
    assert driver.task(a_task(1)) == []
    assert driver.session.fetched(a_notice(2)) == [Load(a_notice(3))]
    assert driver.end("1.0") == []
    # Versions in quick succession do not put the load off again.
    driver.session.on_weights(a_notice(4))
    assert driver.session.fetched(a_notice(3)) == [Swap(a_notice(3))]
    actions = driver.session.loaded(a_notice(3))
    assert started(actions) == ["1.100"]
    assert actions[1:] == [Load(a_notice(4))]


def test_a_pinned_evaluation_that_comes_during_a_drain_runs_under_the_old_version() -> None:
    driver = SessionDriver(reload="drain")
    driver.task(a_task(0))
    driver.session.on_weights(a_notice(1))
    driver.session.fetched(a_notice(1))
    assert started(driver.task(an_evaluation(1, version=0))) == ["1.e1"]
    assert driver.end("1.0") == []
    assert driver.end("1.e1") == [Swap(a_notice(1))]


def test_a_pinned_evaluation_holds_up_a_drain_and_nothing_else_is_started_meanwhile() -> None:
    driver = SessionDriver(reload="drain")
    driver.task(an_evaluation(1, version=0))
    driver.session.on_weights(a_notice(1))
    assert driver.session.fetched(a_notice(1)) == []
    assert driver.task(a_task(0)) == []
    assert driver.end("1.e1") == [Swap(a_notice(1))]


def test_a_drained_rollout_that_is_cancelled_makes_way() -> None:
    driver = SessionDriver(reload="drain")
    driver.task(a_task(0))
    driver.session.on_weights(a_notice(1))
    driver.session.fetched(a_notice(1))
    cancel = Cancel(task_id="1.0", epoch=1, grant_id="1.1", reason=CancelReason.STALE)
    assert driver.task(cancel) == [Interrupt("1.0")]
    assert driver.end("1.0") == [Swap(a_notice(1))]


def test_a_fetch_that_fails_during_a_drain_ends_it_until_a_version_is_here_again() -> None:
    driver = SessionDriver(reload="drain")
    driver.task(a_task(0))
    driver.session.on_weights(a_notice(1))
    driver.session.fetched(a_notice(1))
    assert driver.task(a_task(1)) == []
    driver.session.on_weights(a_notice(2))
    assert started(driver.session.fetch_failed(a_notice(2), "cut")) == ["1.100"]
    assert driver.session.retry_load() == [Load(a_notice(2))]
    assert driver.session.fetched(a_notice(2)) == []
    assert driver.task(a_task(2)) == []
    driver.end("1.0")
    assert driver.end("1.100") == [Swap(a_notice(2))]


def test_with_abort_running_rollouts_are_suspended_for_the_swap() -> None:
    driver = SessionDriver(reload="abort")
    driver.task(a_task(0))
    driver.task(a_task(1))
    driver.session.on_weights(a_notice(1))
    assert driver.session.fetched(a_notice(1)) == [Swap(a_notice(1), ("1.0", "1.100"))]
    assert driver.session.loaded(a_notice(1)) == []
    assert driver.session.open_task_ids == ["1.0", "1.100"]


def test_a_rollout_that_shall_end_anyway_is_not_suspended() -> None:
    driver = SessionDriver(reload="abort")
    driver.task(a_task(0))
    driver.session.on_weights(a_notice(1))
    driver.task(Cancel(task_id="1.0", epoch=1, grant_id="1.1", reason=CancelReason.STALE))
    assert driver.session.fetched(a_notice(1)) == [Swap(a_notice(1))]


def test_after_so_many_resumes_a_rollout_is_kept() -> None:
    driver = SessionDriver(reload="abort", max_resumes=2)
    driver.task(a_task(0))
    suspended = []
    for version in range(1, 5):
        driver.session.on_weights(a_notice(version))
        (swap,) = driver.session.fetched(a_notice(version))
        assert isinstance(swap, Swap)
        suspended.append(swap.suspended)
        driver.session.loaded(a_notice(version))
        if version == 3:
            assert started(driver.task(a_task(1))) == ["1.100"]
    assert suspended == [("1.0",), ("1.0",), (), ("1.100",)]


def test_a_failed_swap_is_repeated_without_suspending_twice() -> None:
    driver = SessionDriver(reload="abort", max_resumes=2)
    driver.task(a_task(0))
    driver.session.on_weights(a_notice(1))
    assert driver.session.fetched(a_notice(1)) == [Swap(a_notice(1), ("1.0",))]
    driver.session.load_failed(a_notice(1), "does not fit")
    assert driver.session.retry_load() == [Load(a_notice(1))]
    assert driver.session.fetched(a_notice(1)) == [Swap(a_notice(1))]
    driver.session.loaded(a_notice(1))
    driver.session.on_weights(a_notice(2))
    assert driver.session.fetched(a_notice(2)) == [Swap(a_notice(2), ("1.0",))]


@pytest.mark.parametrize("reload", ["keep", "drain", "abort"])
def test_a_worker_that_leaves_loads_nothing_more(reload: ReloadMode) -> None:
    driver = SessionDriver(reload=reload)
    driver.session.on_weights(a_notice(1))
    driver.session.leave("stopped")
    assert driver.session.fetched(a_notice(1)) == []


def test_a_worker_that_leaves_while_it_fetches_has_left_whatever_becomes_of_the_fetch() -> None:
    for ends in (WorkerSession.disown, lambda session, notice: session.fetch_failed(notice, "404")):
        driver = SessionDriver()
        driver.session.on_weights(a_notice(1))
        driver.session.leave("stopped")
        assert driver.session.on_weights(a_notice(2)) == []
        assert ends(driver.session, a_notice(1)) == []
        assert driver.session.retry_load() == []
        assert driver.says() is WorkerState.LEAVING


def test_after_a_fetch_that_failed_a_newer_version_is_fetched_with_the_retry_and_heals_the_worker() -> None:
    driver = SessionDriver()
    driver.session.on_weights(a_notice(1))
    driver.session.fetch_failed(a_notice(1), "404")
    assert driver.session.on_weights(a_notice(2)) == []
    assert started(driver.task(a_task(0))) == ["1.0"]
    assert driver.session.retry_load() == [Load(a_notice(2))]
    assert driver.session.fetched(a_notice(2)) == [Swap(a_notice(2))]
    assert started(driver.session.loaded(a_notice(2))) == []
    assert (driver.says(), driver.session.error) == (WorkerState.SERVING, None)


def test_a_version_that_this_machine_has_passed_gives_way_to_the_newest_without_a_failure() -> None:
    driver = SessionDriver()
    assert driver.session.on_weights(a_notice(1)) == [Load(a_notice(1))]
    assert driver.session.on_weights(a_notice(2)) == []
    assert driver.session.fetch_again() == [Load(a_notice(2))]
    assert driver.session.error is None


def test_a_late_joiner_begins_with_the_newest_version() -> None:
    session = WorkerSession(worker_id, capacity=4, load_attempts=3, reward_function="m:f", clock=lambda: 0.0)
    for version in range(5):
        assert session.on_weights(a_notice(version)) == []
    assert session.engine_ready() == [Load(a_notice(4))]


def test_a_notice_that_is_too_far_ahead_is_nobodys() -> None:
    driver = SessionDriver()
    assert driver.session.why_refused_weights(a_notice(10**9)) == "version 1000000000; the one after 0 is 1"
    assert driver.session.on_weights(a_notice(10**9)) == []
    assert driver.session.on_weights(a_notice(1)) == [Load(a_notice(1))]


@pytest.mark.parametrize("served", [0, None])
def test_without_a_disowned_notice_the_worker_goes_on_as_before(served: int | None) -> None:
    driver = SessionDriver(served=served)
    forged, genuine = replace(a_notice(1), name="elsewhere", sha256="f" * 64), a_notice(1)
    assert driver.session.on_weights(forged) == [Load(forged)]
    assert driver.session.on_weights(genuine) == []
    assert driver.session.disown(forged) == [Load(genuine)]
    driver.session.fetched(genuine)
    driver.session.loaded(genuine)
    assert driver.session.served == genuine


def test_a_disowned_notice_leaves_the_served_version_in_service() -> None:
    driver = SessionDriver()
    driver.session.on_weights(a_notice(1))
    assert driver.session.disown(a_notice(1)) == []
    assert driver.says() is WorkerState.SERVING
    assert started(driver.task(a_task(0))) == ["1.0"]


def test_a_disowned_notice_takes_the_error_of_its_fetches_with_it() -> None:
    driver = SessionDriver()
    driver.session.on_weights(a_notice(1))
    driver.session.fetch_failed(a_notice(1), "no such file")
    assert driver.session.retry_load() == [Load(a_notice(1))]
    assert driver.session.disown(a_notice(1)) == []
    assert (driver.says(), driver.session.error) == (WorkerState.SERVING, None)


def test_a_disowned_notice_leaves_the_error_of_a_version_that_is_still_to_be_loaded() -> None:
    driver = SessionDriver()
    driver.session.on_weights(a_notice(1))
    driver.session.fetch_failed(a_notice(1), "no such file")
    driver.session.on_weights(a_notice(2))
    assert driver.session.retry_load() == [Load(a_notice(2))]
    assert driver.session.disown(a_notice(2)) == [Load(a_notice(1))]
    assert driver.session.error == "version 1 could not be fetched: no such file"


def test_a_worker_without_weights_after_a_failed_load_says_no_phase_but_its_error() -> None:
    driver = SessionDriver()
    driver.session.on_weights(a_notice(1))
    driver.session.fetched(a_notice(1))
    driver.session.load_failed(a_notice(1), "wrong shape")
    assert (driver.says(), driver.session.phase) == (WorkerState.LOAD_FAILED, "")


def test_a_worker_says_what_it_does_before_its_first_version_is_served() -> None:
    session = WorkerSession(
        worker_id, capacity=2, load_attempts=3, reward_function="rewards:exact", clock=lambda: 0.0
    )
    phases = [session.phase]
    session.engine_ready()
    phases.append(session.phase)
    session.on_weights(a_notice(0))
    phases.append(session.phase)
    session.fetched(a_notice(0))
    session.loaded(a_notice(0))
    phases.append(session.phase)
    session.on_weights(a_notice(1))
    assert phases == ["starting its engine", "waiting for version 0", "loading weights", ""]
    assert (session.phase, session.state) == ("", WorkerState.SERVING)
