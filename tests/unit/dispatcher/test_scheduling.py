"""The scheduling modes that queue scheduling is compared with: rounds, and workers in turn."""

from __future__ import annotations

from support.builders import groups_config
from support.dispatcher_driver import DispatcherDriver

from producers.dispatcher.rounds import Round
from rollog.settings.generation import DispatchConfig
from schemas import IssueReason, Status


def test_a_round_holds_what_is_missing_when_it_begins_and_ends_before_the_next() -> None:
    round_ = Round()
    round_.advance(is_idle=True, next_group_id=0, num_missing=2)
    assert [round_.includes(group) for group in (0, 1, 2)] == [True, True, False]
    round_.advance(is_idle=True, next_group_id=1, num_missing=5)
    assert not round_.includes(2)
    round_.complete()
    round_.advance(is_idle=False, next_group_id=2, num_missing=1)
    assert not round_.is_issued
    round_.advance(is_idle=True, next_group_id=2, num_missing=1)
    assert (round_.is_issued, round_.includes(2), round_.includes(3)) == (True, True, False)


def test_a_round_without_anything_missing_gives_way_to_the_next() -> None:
    round_ = Round()
    round_.advance(is_idle=True, next_group_id=3, num_missing=0)
    round_.complete()
    round_.advance(is_idle=True, next_group_id=3, num_missing=1)
    assert round_.includes(3)


def batch_bench() -> DispatcherDriver:
    driver = DispatcherDriver(dispatch=DispatchConfig(prefetch_tasks=0, scheduling="batch"))
    driver.publish_ledger()
    return driver


def test_batch_scheduling_replaces_a_filtered_group_only_when_the_whole_round_has_ended() -> None:
    driver = batch_bench()
    driver.beat()
    dispatcher = driver.dispatcher()
    driver.turn(dispatcher)
    tasks = driver.tasks()
    assert [task.group_id for task in tasks] == [0, 0, 1, 1]
    for task in tasks[:3]:
        driver.end(task, reward=1.0)
    driver.turn(dispatcher)
    assert len(driver.tasks()) == 4
    driver.end(tasks[3], reward=0.0)
    driver.turn(dispatcher)
    assert [task.group_id for task in driver.tasks()[4:]] == [2, 2]


def test_a_round_larger_than_the_slots_goes_out_as_they_become_free_and_grows_by_nothing() -> None:
    driver = batch_bench()
    driver.beat(capacity=2)
    dispatcher = driver.dispatcher()
    driver.turn(dispatcher)
    for task in driver.tasks():
        driver.end(task, reward=1.0)
    driver.turn(dispatcher)
    assert [task.group_id for task in driver.tasks()] == [0, 0, 1, 1]
    driver.end(driver.tasks()[2], reward=1.0)
    driver.turn(dispatcher)
    assert len(driver.tasks()) == 4


def test_a_failed_rollout_is_made_again_in_the_next_round() -> None:
    driver = batch_bench()
    driver.beat()
    dispatcher = driver.dispatcher()
    driver.turn(dispatcher)
    tasks = driver.tasks()
    driver.end(tasks[0], status=Status.FAILED, segments=(), reward=0.0)
    driver.turn(dispatcher)
    assert len(driver.tasks()) == 4
    for task in tasks[1:]:
        driver.end(task)
    driver.turn(dispatcher)
    (again,) = driver.tasks()[4:]
    assert (again.group_id, again.replica, again.issue_reason) == (0, 0, IssueReason.FAILED)


def test_no_worker_gets_more_replicas_of_a_group_than_are_redundant_however_many_slots_it_has() -> None:
    driver = DispatcherDriver(
        dispatch=DispatchConfig(prefetch_tasks=0),
        groups=groups_config(groups_per_batch=1, redundant_replicas=1),
    )
    driver.publish_ledger()
    for worker_id, capacity in (("worker-1", 1), ("worker-2", 1), ("worker-3", 1), ("worker-4", 9)):
        driver.beat(worker_id, capacity=capacity)
    dispatcher = driver.dispatcher()
    driver.turn(dispatcher)
    grants = [task.grant_id for task in driver.tasks()]
    assert len(grants) == 3
    assert len(set(grants)) == len(grants)


def test_static_scheduling_deals_tasks_in_turn_beyond_what_a_worker_can_run() -> None:
    driver = DispatcherDriver(dispatch=DispatchConfig(prefetch_tasks=0, scheduling="static"))
    driver.publish_ledger()
    driver.beat("worker-1", capacity=1)
    driver.beat("worker-2", capacity=9)
    dispatcher = driver.dispatcher()
    driver.turn(dispatcher)
    numbers = {
        partition: len([task for task in driver.tasks() if task.grant_id == grant_id])
        for partition, grant_id in enumerate(sorted({task.grant_id for task in driver.tasks()}))
    }
    assert numbers == {0: 2, 1: 2}
