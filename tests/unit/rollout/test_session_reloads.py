"""When a worker takes up new weights, and what becomes of the rollouts that run then: keep, drain, abort."""

from __future__ import annotations

import pytest
from support.builders import a_task
from support.session_driver import Turner, a_notice, an_evaluation, started, worker_id

from producers.rollout.actions import Interrupt, Load, Swap
from producers.rollout.session import ReloadMode, WorkerSession
from schemas import Cancel, CancelReason


def test_with_keep_a_fetched_version_is_loaded_at_once_and_running_rollouts_stay() -> None:
    turner = Turner()
    turner.task(a_task(0))
    turner.session.on_weights(a_notice(1))
    assert turner.session.fetched(a_notice(1)) == [Swap(a_notice(1))]


def test_a_drain_waits_for_running_rollouts_and_starts_no_others() -> None:
    turner = Turner(reload="drain")
    turner.task(a_task(0))
    turner.task(a_task(1))
    assert turner.session.on_weights(a_notice(1)) == [Load(a_notice(1))]
    assert turner.task(a_task(2)) == []
    assert turner.session.fetched(a_notice(1)) == []
    assert turner.task(a_task(3)) == []
    assert turner.end("1.0") == []
    assert turner.session.open_task_ids == ["1.100", "1.200", "1.300"]
    assert turner.end("1.100") == [Swap(a_notice(1))]
    assert started(turner.session.loaded(a_notice(1))) == ["1.200", "1.300"]


def test_a_drain_that_ends_while_the_file_is_fetched_swaps_when_it_is_there() -> None:
    turner = Turner(reload="drain")
    turner.task(a_task(0))
    turner.session.on_weights(a_notice(1))
    assert turner.end("1.0") == []
    assert turner.session.fetched(a_notice(1)) == [Swap(a_notice(1))]


def test_a_drain_ends_with_the_version_that_is_newest_then() -> None:
    turner = Turner(reload="drain")
    turner.task(a_task(0))
    turner.session.on_weights(a_notice(1))
    turner.session.fetched(a_notice(1))
    turner.session.on_weights(a_notice(2))
    turner.session.on_weights(a_notice(3))
    assert turner.end("1.0") == [Load(a_notice(3))]
    # Versions in quick succession do not put the load off again.
    turner.session.on_weights(a_notice(4))
    assert turner.session.fetched(a_notice(3)) == [Swap(a_notice(3))]
    assert turner.session.loaded(a_notice(3)) == [Load(a_notice(4))]


def test_a_drain_that_follows_at_once_begins_no_rollout_in_between() -> None:
    turner = Turner(reload="drain", capacity=1)
    turner.session.on_weights(a_notice(1))
    turner.task(a_task(0))
    turner.session.on_weights(a_notice(2))
    turner.session.fetched(a_notice(1))
    assert turner.session.loaded(a_notice(1)) == [Load(a_notice(2))]
    turner.session.fetched(a_notice(2))
    assert started(turner.session.loaded(a_notice(2))) == ["1.0"]


def test_a_pinned_evaluation_that_comes_during_a_drain_runs_under_the_old_version() -> None:
    turner = Turner(reload="drain")
    turner.task(a_task(0))
    turner.session.on_weights(a_notice(1))
    turner.session.fetched(a_notice(1))
    assert started(turner.task(an_evaluation(1, version=0))) == ["1.e1"]
    assert turner.end("1.0") == []
    assert turner.end("1.e1") == [Swap(a_notice(1))]


def test_a_pinned_evaluation_holds_up_a_drain_and_nothing_else_is_started_meanwhile() -> None:
    turner = Turner(reload="drain")
    turner.task(an_evaluation(1, version=0))
    assert turner.session.on_weights(a_notice(1)) == []
    assert turner.task(a_task(0)) == []
    assert turner.end("1.e1") == [Load(a_notice(1))]


def test_a_drained_rollout_that_is_cancelled_makes_way() -> None:
    turner = Turner(reload="drain")
    turner.task(a_task(0))
    turner.session.on_weights(a_notice(1))
    turner.session.fetched(a_notice(1))
    cancel = Cancel(task_id="1.0", epoch=1, grant_id="1.1", reason=CancelReason.STALE)
    assert turner.task(cancel) == [Interrupt("1.0")]
    assert turner.end("1.0") == [Swap(a_notice(1))]


def test_a_fetch_that_failed_during_a_drain_is_tried_again_and_waits_for_the_same_rollouts() -> None:
    turner = Turner(reload="drain")
    turner.task(a_task(0))
    turner.session.on_weights(a_notice(1))
    turner.session.load_failed(a_notice(1), "cut")
    assert turner.session.retry_load() == [Load(a_notice(1))]
    assert turner.session.fetched(a_notice(1)) == []
    assert turner.task(a_task(1)) == []
    assert turner.end("1.0") == [Swap(a_notice(1))]


def test_with_abort_running_rollouts_are_suspended_for_the_swap() -> None:
    turner = Turner(reload="abort")
    turner.task(a_task(0))
    turner.task(a_task(1))
    turner.session.on_weights(a_notice(1))
    assert turner.session.fetched(a_notice(1)) == [Swap(a_notice(1), ("1.0", "1.100"))]
    assert turner.session.loaded(a_notice(1)) == []
    assert turner.session.open_task_ids == ["1.0", "1.100"]


def test_a_rollout_that_shall_end_anyway_is_not_suspended() -> None:
    turner = Turner(reload="abort")
    turner.task(a_task(0))
    turner.session.on_weights(a_notice(1))
    turner.task(Cancel(task_id="1.0", epoch=1, grant_id="1.1", reason=CancelReason.STALE))
    assert turner.session.fetched(a_notice(1)) == [Swap(a_notice(1))]


def test_after_so_many_resumes_a_rollout_is_kept() -> None:
    turner = Turner(reload="abort", max_resumes=2)
    turner.task(a_task(0))
    suspended = []
    for version in range(1, 5):
        turner.session.on_weights(a_notice(version))
        (swap,) = turner.session.fetched(a_notice(version))
        assert isinstance(swap, Swap)
        suspended.append(swap.suspended)
        turner.session.loaded(a_notice(version))
        if version == 3:
            assert started(turner.task(a_task(1))) == ["1.100"]
    assert suspended == [("1.0",), ("1.0",), (), ("1.100",)]


def test_a_failed_swap_is_repeated_without_suspending_twice() -> None:
    turner = Turner(reload="abort", max_resumes=2)
    turner.task(a_task(0))
    turner.session.on_weights(a_notice(1))
    assert turner.session.fetched(a_notice(1)) == [Swap(a_notice(1), ("1.0",))]
    turner.session.load_failed(a_notice(1), "does not fit")
    assert turner.session.retry_load() == [Load(a_notice(1))]
    assert turner.session.fetched(a_notice(1)) == [Swap(a_notice(1))]
    turner.session.loaded(a_notice(1))
    turner.session.on_weights(a_notice(2))
    assert turner.session.fetched(a_notice(2)) == [Swap(a_notice(2), ("1.0",))]


@pytest.mark.parametrize("reload", ["keep", "drain", "abort"])
def test_a_worker_that_leaves_loads_nothing_more(reload: ReloadMode) -> None:
    turner = Turner(reload=reload)
    turner.session.on_weights(a_notice(1))
    turner.session.leave("stopped")
    assert turner.session.fetched(a_notice(1)) == []


def test_a_late_joiner_begins_with_the_newest_version() -> None:
    session = WorkerSession(worker_id, capacity=4, load_attempts=3, reward_function="m:f", clock=lambda: 0.0)
    for version in range(5):
        assert session.on_weights(a_notice(version)) == []
    assert session.engine_ready() == [Load(a_notice(4))]
