"""The dispatcher's loop on an in-memory broker, driven by hand with the clock."""

from __future__ import annotations

import pytest
from support.builders import a_header, a_task, groups_config
from support.dispatcher_driver import DispatcherDriver, num_partitions, started_driver

from producers.dispatcher.dispatcher import pause_seconds
from rollog.kernel.errors import Superseded
from rollog.rules.seeds import derived_seed
from rollog.settings.generation import DataConfig, DispatchConfig, EvaluationConfig
from rollog.settings.run import BrokerConfig, RunConfig
from schemas import (
    Cancel,
    CancelReason,
    ClosedGroup,
    DatasetEnd,
    DispatcherEpoch,
    Disposition,
    Fence,
    Grant,
    IssueReason,
    Kind,
    Revoke,
    RunClosed,
    Sample,
    Status,
    Stop,
    Stopped,
    WorkerState,
    int32_array,
)
from schemas.codec import encode
from trainer.buffer.verdicts import verdict_of


def test_an_epoch_is_taken_and_every_tasks_partition_is_fenced() -> None:
    driver = DispatcherDriver()
    assert driver.dispatcher().epoch == 1
    assert driver.dispatcher().epoch == 2
    assert [record.epoch for record in driver.control() if isinstance(record, DispatcherEpoch)] == [1, 2]
    fences = [record.epoch for record in driver.read(driver.topics.tasks, 3) if isinstance(record, Fence)]
    assert sorted(fences) == [1, 1, 1, 2, 2, 2]


def test_a_worker_that_is_heard_gets_a_grant_and_tasks_up_to_its_credits() -> None:
    driver = started_driver()
    dispatcher = driver.dispatcher()
    driver.turn(dispatcher)
    (grant,) = [record for record in driver.control() if isinstance(record, Grant)]
    tasks = driver.tasks()
    assert {task.grant_id for task in tasks} == {grant.grant_id}
    assert [(task.group_id, task.replica) for task in tasks] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert {task.sample_partition for task in tasks} == {0, 1}
    assert len({task.seed for task in tasks}) == 4


@pytest.mark.parametrize(
    ("num_workers", "seconds"), [(0, 0.03), (32, 0.03), (64, 0.0512), (188, 0.15), (4096, 0.15)]
)
def test_records_gather_for_longer_the_more_workers_there_are(num_workers: int, seconds: float) -> None:
    assert pause_seconds(num_workers) == pytest.approx(seconds)


def test_nothing_is_issued_before_genesis() -> None:
    driver = DispatcherDriver()
    driver.beat()
    dispatcher = driver.dispatcher()
    driver.turn(dispatcher)
    assert driver.tasks() == []


def test_a_filtered_group_is_replaced_at_once_and_the_ledger_makes_room_for_the_next() -> None:
    driver = started_driver()
    dispatcher = driver.dispatcher()
    driver.turn(dispatcher)
    for task in driver.tasks()[:2]:
        driver.end(task, reward=1.0)
    driver.turn(dispatcher)
    assert [task.group_id for task in driver.tasks()[4:]] == [2, 2]


def test_a_restarted_dispatcher_goes_on_with_the_same_grants_and_issues_nothing_twice() -> None:
    driver = started_driver()
    first = driver.dispatcher()
    driver.turn(first)
    tasks = driver.tasks()
    driver.end(tasks[0], status=Status.FAILED, segments=(), reward=0.0)
    second = driver.dispatcher()
    driver.beat(grant_id="1.1", tasks_position=0)
    driver.turn(second)
    grants = [record for record in driver.control() if isinstance(record, Grant)]
    assert [(grant.grant_id, grant.start_offset) for grant in grants] == [("1.1", 1), ("1.1", 1)]
    assert [grant.epoch for grant in grants] == [1, 2]
    (again,) = driver.tasks()[4:]
    assert (again.group_id, again.replica, again.attempt) == (0, 0, 1)
    assert (again.epoch, again.issue_reason) == (2, IssueReason.FAILED)


def test_tasks_of_a_dispatcher_that_was_superseded_are_void_and_it_notices() -> None:
    driver = started_driver()
    first = driver.dispatcher()
    second = driver.dispatcher()
    with pytest.raises(Superseded, match="epoch 2"):
        driver.turn(first)
    driver.turn(second)
    assert {task.epoch for task in driver.tasks()} == {2}


def test_a_silent_worker_loses_its_grant_and_its_tasks_go_to_another() -> None:
    driver = started_driver()
    dispatcher = driver.dispatcher()
    driver.turn(dispatcher)
    driver.beat("worker-2")
    driver.turn(dispatcher)
    for now in (1.0, 2.0, 3.0, 3.5):
        driver.now = now
        driver.beat("worker-2", grant_id="1.2")
        driver.turn(dispatcher)
    lost = [
        record for record in driver.read(driver.topics.samples, num_partitions) if isinstance(record, Sample)
    ]
    assert {(sample.status, sample.worker_id) for sample in lost} == {(Status.LOST, "worker-1")}
    assert len(lost) == 4
    assert [record.worker_id for record in driver.control() if isinstance(record, Revoke)] == ["worker-1"]
    again = [task for task in driver.tasks() if task.attempt == 1]
    assert {task.grant_id for task in again} == {"1.2"}
    assert len(again) == 4


def test_silence_while_the_broker_is_away_expires_nobody() -> None:
    driver = started_driver()
    dispatcher = driver.dispatcher()
    driver.turn(dispatcher)
    driver.now = 60.0
    driver.turn(dispatcher)
    assert not [record for record in driver.control() if isinstance(record, Revoke)]


def test_leases_do_not_run_while_the_broker_is_paused() -> None:
    driver = started_driver()
    dispatcher = driver.dispatcher()
    driver.turn(dispatcher)
    driver.broker.pause()
    for driver.now in map(float, range(1, 11)):
        driver.turn(dispatcher, 1)
    driver.broker.resume()
    driver.turn(dispatcher)
    driver.now = 11.5
    driver.turn(dispatcher)
    assert not [record for record in driver.control() if isinstance(record, Revoke)]
    assert driver.read(driver.topics.samples, num_partitions) == []
    driver.now = 13.1
    driver.turn(dispatcher)
    assert [record.worker_id for record in driver.control() if isinstance(record, Revoke)] == ["worker-1"]


def test_a_worker_that_leaves_gives_its_tasks_back_at_once() -> None:
    driver = started_driver()
    dispatcher = driver.dispatcher()
    driver.turn(dispatcher)
    driver.leave("worker-1")
    driver.turn(dispatcher)
    assert [record.reason for record in driver.control() if isinstance(record, Revoke)] == ["left"]
    assert len(driver.read(driver.topics.samples, num_partitions)) == 4


def test_a_worker_heard_after_its_lease_expired_gets_a_new_grant() -> None:
    driver = started_driver()
    dispatcher = driver.dispatcher()
    driver.turn(dispatcher)
    for now in (1.0, 2.0, 3.0, 3.5):
        driver.now = now
        driver.turn(dispatcher)
    driver.beat("worker-1", grant_id="1.1")
    driver.turn(dispatcher)
    grants = [record.grant_id for record in driver.control() if isinstance(record, Grant)]
    assert grants == ["1.1", "1.2"]


def test_tasks_wait_for_a_worker_that_serves_their_version() -> None:
    driver = started_driver()
    driver.ledger.step()
    driver.publish_ledger()
    dispatcher = driver.dispatcher()
    driver.turn(dispatcher)
    assert driver.tasks() == []
    driver.beat(served_version=1)
    driver.turn(dispatcher)
    assert {task.min_version for task in driver.tasks()} == {1}


def test_a_worker_that_failed_to_load_gets_nothing() -> None:
    driver = DispatcherDriver()
    driver.publish_ledger()
    driver.beat(state=WorkerState.LOAD_FAILED)
    dispatcher = driver.dispatcher()
    driver.turn(dispatcher)
    assert driver.tasks() == []


def test_tasks_of_a_closed_group_are_cancelled_behind_the_task_itself() -> None:
    driver = started_driver()
    dispatcher = driver.dispatcher()
    driver.turn(dispatcher)
    driver.ledger.verdicts([], [ClosedGroup(group_id=0, outcome=Disposition.INCOMPLETE)])
    driver.publish_ledger()
    driver.turn(dispatcher)
    cancels = [record for record in driver.read(driver.topics.tasks, 3) if isinstance(record, Cancel)]
    assert {cancel.task_id for cancel in cancels} == {task.task_id for task in driver.tasks()[:2]}
    assert {cancel.reason for cancel in cancels} == {CancelReason.SATISFIED}


def test_what_still_runs_of_a_group_that_has_enough_is_cancelled_as_surplus() -> None:
    driver = started_driver(groups=groups_config(redundant_replicas=1))
    dispatcher = driver.dispatcher()
    driver.turn(dispatcher)
    of_group = [task for task in driver.tasks() if task.group_id == 0]
    for task in of_group[:2]:
        driver.end(task)
    driver.turn(dispatcher)
    cancels = [record for record in driver.read(driver.topics.tasks, 3) if isinstance(record, Cancel)]
    assert [(cancel.task_id, cancel.reason) for cancel in cancels] == [
        (of_group[2].task_id, CancelReason.SURPLUS)
    ]


def test_a_running_rollout_that_can_only_end_stale_is_cancelled_once_and_made_again() -> None:
    driver = started_driver()
    dispatcher = driver.dispatcher()
    driver.turn(dispatcher)
    first, second = driver.tasks()[:2]
    driver.ledger.step()
    driver.publish_ledger()
    for _ in range(3):
        driver.beat(first_versions={first.task_id: 0, second.task_id: 1, "9.9": 0}, served_version=1)
        driver.turn(dispatcher)
    cancels = [record for record in driver.read(driver.topics.tasks, 3) if isinstance(record, Cancel)]
    assert [(cancel.task_id, cancel.reason) for cancel in cancels] == [(first.task_id, CancelReason.STALE)]
    driver.end(first, status=Status.CANCELLED, cancel_reason="stale", segments=(), token_ids=int32_array())
    driver.turn(dispatcher)
    again = driver.tasks()[-1]
    assert (again.group_id, again.replica, again.attempt) == (first.group_id, first.replica, 1)
    assert (again.issue_reason, again.min_version) == (IssueReason.STALE, 1)


def test_what_a_step_leaves_no_chance_is_cancelled_without_another_heartbeat() -> None:
    driver = started_driver()
    dispatcher = driver.dispatcher()
    driver.turn(dispatcher)
    first, second = driver.tasks()[:2]
    driver.beat(first_versions={first.task_id: 0, second.task_id: 1})
    driver.turn(dispatcher)
    driver.ledger.step()
    driver.publish_ledger()
    driver.turn(dispatcher)
    cancels = [record for record in driver.read(driver.topics.tasks, 3) if isinstance(record, Cancel)]
    assert [(cancel.task_id, cancel.reason) for cancel in cancels] == [(first.task_id, CancelReason.STALE)]


def test_a_stale_verdict_brings_the_replica_back() -> None:
    driver = started_driver()
    dispatcher = driver.dispatcher()
    driver.turn(dispatcher)
    task = driver.tasks()[0]
    offset = driver.end(task)
    header = a_header(0, 0, offset=offset)
    driver.ledger.verdicts([verdict_of(header, Disposition.STALE, version=0)])
    driver.publish_ledger()
    driver.turn(dispatcher)
    again = driver.tasks()[-1]
    assert (again.group_id, again.replica, again.attempt, again.protected) == (0, 0, 1, True)


def test_without_replication_one_task_makes_the_whole_group() -> None:
    driver = started_driver(dispatch=DispatchConfig(prefetch_tasks=0, replicate=False))
    dispatcher = driver.dispatcher()
    driver.turn(dispatcher)
    assert [(task.group_id, task.num_replicas) for task in driver.tasks()] == [(0, 2), (1, 2)]


def test_more_workers_than_partitions_are_told_so_and_wait() -> None:
    driver = DispatcherDriver(broker=BrokerConfig(samples_partitions=num_partitions, max_workers=1))
    driver.publish_ledger()
    driver.beat("worker-1")
    driver.beat("worker-2")
    dispatcher = driver.dispatcher()
    driver.turn(dispatcher)
    assert len([record for record in driver.control() if isinstance(record, Grant)]) == 1


def test_held_out_prompts_go_first_pinned_to_their_version() -> None:
    driver = DispatcherDriver(num_held_out=3, evaluation=EvaluationConfig(every_steps=0, sampled=False))
    driver.publish_ledger()
    driver.beat()
    dispatcher = driver.dispatcher()
    driver.turn(dispatcher)
    tasks = driver.tasks()
    assert [task.kind for task in tasks] == [Kind.EVALUATION] * 3 + [Kind.TRAINING]
    assert {(task.pinned_version, task.sampling.temperature) for task in tasks[:3]} == {(0, 0.0)}


def test_the_run_ends_with_final_evaluation_stop_stopped_and_run_closed() -> None:
    driver = DispatcherDriver(num_held_out=1, run_config=RunConfig(num_steps=1))
    driver.ledger.step()
    driver.publish_ledger()
    driver.beat(served_version=1)
    dispatcher = driver.dispatcher()
    driver.turn(dispatcher)
    (task,) = driver.tasks()
    assert (task.kind, task.pinned_version) == (Kind.EVALUATION, 1)
    assert not [record for record in driver.control() if isinstance(record, Stopped)]
    driver.end(task, version=1)
    driver.turn(dispatcher)
    assert [record for record in driver.read(driver.topics.tasks, 3) if isinstance(record, Stop)]
    assert [record for record in driver.control() if isinstance(record, Stopped)]
    driver.ledger.close()
    driver.publish_ledger()
    driver.turn(dispatcher, times=1)
    assert dispatcher.state.is_run_closed
    assert [record for record in driver.control() if isinstance(record, RunClosed)]


def test_workers_that_do_not_end_their_tasks_in_time_are_not_waited_for() -> None:
    driver = started_driver(
        run_config=RunConfig(num_steps=1), dispatch=DispatchConfig(prefetch_tasks=0, stop_timeout_seconds=1.0)
    )
    dispatcher = driver.dispatcher()
    driver.turn(dispatcher)
    driver.ledger.step([], [ClosedGroup(group_id=0, outcome=Disposition.TRAINED)])
    driver.publish_ledger()
    driver.turn(dispatcher)
    assert not [record for record in driver.control() if isinstance(record, Stopped)]
    driver.now = 1.5
    driver.turn(dispatcher)
    assert [record for record in driver.control() if isinstance(record, Stopped)]


def test_the_end_of_the_dataset_is_announced_and_ends_the_run_when_every_group_is_closed() -> None:
    driver = DispatcherDriver(num_prompts=1, data=DataConfig(num_epochs=1))
    driver.publish_ledger()
    driver.beat()
    dispatcher = driver.dispatcher()
    driver.turn(dispatcher)
    (end,) = [record for record in driver.control() if isinstance(record, DatasetEnd)]
    assert end.last_group_id == 0
    for task in driver.tasks():
        driver.end(task)
    driver.ledger.step([], [ClosedGroup(group_id=0, outcome=Disposition.TRAINED)])
    driver.publish_ledger()
    driver.turn(dispatcher)
    assert [record for record in driver.control() if isinstance(record, Stopped)]


def test_tasks_whose_grant_never_reached_the_log_are_lost_and_issued_again() -> None:
    driver = started_driver()
    orphan = a_task(0, 0, grant_id="0.9", task_id="0.1", epoch=0, seed=derived_seed(0, 0, 0, 0))
    driver.producer.send(driver.topics.tasks, 0, encode(orphan)).offset(1.0)
    dispatcher = driver.dispatcher()
    driver.turn(dispatcher)
    (lost,) = [
        record for record in driver.read(driver.topics.samples, num_partitions) if isinstance(record, Sample)
    ]
    assert (lost.task_id, lost.status) == ("0.1", Status.LOST)
    again = [task for task in driver.tasks() if (task.group_id, task.replica, task.attempt) == (0, 0, 1)]
    assert len(again) == 1


def test_a_worker_that_says_it_is_leaving_keeps_its_tasks_until_it_is_gone() -> None:
    driver = started_driver()
    dispatcher = driver.dispatcher()
    driver.turn(dispatcher)
    driver.beat(state=WorkerState.LEAVING, grant_id="1.1")
    driver.turn(dispatcher)
    assert not [record for record in driver.control() if isinstance(record, Revoke)]


def test_a_grant_of_a_superseded_dispatcher_after_the_take_over_is_void() -> None:
    driver = started_driver()
    dispatcher = driver.dispatcher()
    second = driver.dispatcher()
    stray = Grant(grant_id="1.7", epoch=1, worker_id="worker-1", partition=2, start_offset=0)
    driver.producer.send(driver.topics.control, 0, encode(stray)).offset(1.0)
    driver.turn(second)
    assert dispatcher.epoch == 1
    assert {task.grant_id for task in driver.tasks()} == {"2.1"}


def test_a_worker_that_died_before_the_dispatcher_started_gets_no_grant_and_no_tasks() -> None:
    driver = started_driver()
    dispatcher = driver.dispatcher(without_heartbeat=["worker-1"])
    driver.turn(dispatcher)
    assert not [record for record in driver.control() if isinstance(record, Grant)]
    assert driver.tasks() == []


def test_a_group_larger_than_a_workers_slots_goes_to_an_idle_worker() -> None:
    driver = DispatcherDriver(dispatch=DispatchConfig(prefetch_tasks=0, replicate=False))
    driver.publish_ledger()
    driver.beat(capacity=1)
    driver.turn(driver.dispatcher())
    assert [(task.group_id, task.num_replicas) for task in driver.tasks()] == [(0, 2)]


def test_a_starting_worker_does_not_hold_up_the_final_evaluation() -> None:
    driver = DispatcherDriver(
        num_held_out=1,
        run_config=RunConfig(num_steps=2),
        evaluation=EvaluationConfig(every_steps=1, sampled=False),
    )
    driver.ledger.step()
    driver.ledger.step()
    driver.publish_ledger()
    driver.beat("worker-1", served_version=2)
    driver.beat("worker-2", served_version=None, state=WorkerState.STARTING)
    driver.turn(driver.dispatcher())
    assert [(task.kind, task.pinned_version) for task in driver.tasks()] == [(Kind.EVALUATION, 2)]


def test_pinned_tasks_do_not_go_to_a_worker_that_is_reloading() -> None:
    driver = DispatcherDriver(num_held_out=1)
    driver.publish_ledger()
    driver.beat(state=WorkerState.RELOADING)
    driver.turn(driver.dispatcher())
    assert Kind.EVALUATION not in {task.kind for task in driver.tasks()}


@pytest.mark.parametrize("state", [WorkerState.SERVING, WorkerState.RELOADING])
def test_an_overtaken_version_is_evaluated_by_a_worker_that_still_fetches_it(state: WorkerState) -> None:
    """A worker serves version 0 while it fetches version 1, and version 2 is committed meanwhile."""
    driver = DispatcherDriver(num_held_out=1, evaluation=EvaluationConfig(every_steps=1, sampled=False))
    driver.ledger.step()
    driver.ledger.step()
    driver.publish_ledger()
    dispatcher = driver.dispatcher()
    driver.beat(served_version=0, state=state)
    driver.turn(dispatcher)
    driver.beat(served_version=1)
    driver.turn(dispatcher)
    assert [task.pinned_version for task in driver.tasks() if task.kind is Kind.EVALUATION][-1] == 1


def test_an_overtaken_version_that_every_worker_has_passed_is_not_evaluated() -> None:
    driver = DispatcherDriver(num_held_out=1, evaluation=EvaluationConfig(every_steps=1, sampled=False))
    driver.ledger.step()
    driver.ledger.step()
    driver.publish_ledger()
    dispatcher = driver.dispatcher()
    driver.beat(served_version=2)
    driver.turn(dispatcher)
    driver.beat("worker-2", served_version=1)
    driver.turn(dispatcher)
    assert 1 not in {task.pinned_version for task in driver.tasks()}


def test_every_due_version_is_evaluated_although_two_steps_arrive_together() -> None:
    driver = DispatcherDriver(num_held_out=1, evaluation=EvaluationConfig(every_steps=1, sampled=False))
    driver.publish_ledger()
    dispatcher = driver.dispatcher()
    driver.beat(served_version=1)
    driver.ledger.step()
    driver.ledger.step()
    driver.publish_ledger()
    driver.turn(dispatcher)
    assert 1 in {task.pinned_version for task in driver.tasks()}
