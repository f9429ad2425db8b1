"""Several tasks in one record: when, for whom, and that a record of several counts as its tasks do."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from support.builders import a_heartbeat, a_task
from support.dispatcher_driver import DispatcherDriver, max_workers, started_driver
from support.session_driver import SessionDriver

from producers.dispatcher.credits import OpenTask
from producers.dispatcher.outbox import TaskOutbox
from producers.rollout.actions import Start
from producers.rollout.tasks import TaskLimits
from rollog.kernel.broker.ports import Record
from rollog.settings.generation import DispatchConfig
from rollog.settings.run import BrokerConfig
from schemas import (
    Fence,
    Prompt,
    RoleStatus,
    RolloutTask,
    RunRole,
    SchemaError,
    Status,
    TaskBatch,
    most_tasks_in_record,
    tasks_in,
)
from schemas.codec import encode
from schemas.headers import headers_of

num_slots = 4


def heard(driver: DispatcherDriver, *, worker: bool = True, trainer: bool = True) -> None:
    """Heartbeats as this release writes them, or as one that knows no batches did: without headers."""
    status = a_heartbeat(capacity=num_slots)
    role = RoleStatus(role=RunRole.TRAINER, role_id="t")
    for record, key, accepts in ((status, status.worker_id, worker), (role, role.role.value, trainer)):
        headers = headers_of(record) if accepts else []
        driver.producer.send(driver.topics.workers, 0, encode(record), key=key.encode(), headers=headers)
    driver.producer.flush(1.0)


def orders(driver: DispatcherDriver) -> list[TaskBatch | RolloutTask]:
    read = driver.read(driver.topics.tasks, max_workers)
    return [record for record in read if isinstance(record, TaskBatch | RolloutTask)]


def test_what_one_worker_gets_in_one_turn_is_one_record() -> None:
    driver = started_driver()
    dispatcher = driver.dispatcher()
    heard(driver)
    driver.turn(dispatcher)
    (batch,) = orders(driver)
    assert isinstance(batch, TaskBatch)
    assert [task.task_id for task in batch.tasks] == ["1.1", "1.2", "1.3", "1.4"]
    assert {each.known_offset() for each in dispatcher.state.credits.all()} == {1}  # behind the fence


@pytest.mark.parametrize("silent", [{"worker": False}, {"trainer": False}])
def test_whoever_does_not_say_that_it_reads_batches_gets_tasks_alone(silent: dict[str, Any]) -> None:
    driver = started_driver()
    dispatcher = driver.dispatcher()
    heard(driver, **silent)
    driver.turn(dispatcher)
    assert [type(each) for each in orders(driver)] == [RolloutTask] * num_slots


def test_with_one_task_per_record_the_log_is_as_it_always_was() -> None:
    dispatch = DispatchConfig(prefetch_tasks=0, lease_seconds=3.0, max_tasks_per_record=1)
    driver = started_driver(dispatch=dispatch)
    dispatcher = driver.dispatcher()
    heard(driver)
    driver.turn(dispatcher)
    assert [type(each) for each in orders(driver)] == [RolloutTask] * num_slots


def test_a_task_that_comes_alone_has_a_record_of_its_own() -> None:
    driver = started_driver()
    dispatcher = driver.dispatcher()
    heard(driver)
    driver.turn(dispatcher)
    (batch,) = orders(driver)
    first = tasks_in(batch)[0]
    driver.end(first, status=Status.FAILED, segments=())
    driver.turn(dispatcher)
    assert [type(each) for each in orders(driver)] == [TaskBatch, RolloutTask]


def test_a_dispatcher_that_starts_reads_the_tasks_of_a_batch() -> None:
    driver = started_driver()
    dispatcher = driver.dispatcher()
    heard(driver)
    driver.turn(dispatcher)
    task = tasks_in(orders(driver)[0])[1]
    driver.end(task)
    restarted = driver.dispatcher()
    open_tasks = {each.task_id: each.known_offset() for each in restarted.state.credits.all()}
    assert open_tasks == {"1.1": 1, "1.3": 1, "1.4": 1}


def test_a_lost_task_of_a_batch_leaves_the_others_alone() -> None:
    """Its worker has read the record and names the others: after some heartbeats the one is lost."""
    driver = started_driver()
    dispatcher = driver.dispatcher()
    heard(driver)
    driver.turn(dispatcher)
    grant = dispatcher.state.workers.workers["worker-1"].grant
    assert grant is not None
    for second in range(1, 6):
        driver.now = float(second)
        driver.beat(
            capacity=num_slots, grant_id=grant.grant_id, tasks_position=2, open_tasks=("1.1", "1.2", "1.4")
        )
        driver.turn(dispatcher)
    assert {"1.1", "1.2", "1.4"} <= {each.task_id for each in dispatcher.state.credits.all()}
    assert dispatcher.state.credits.get("1.3") is None


@dataclass
class Sent:
    """In the place of a sender: which tasks went together."""

    records: list[tuple[int, list[str]]] = field(default_factory=list)

    def tasks(self, tasks: list[RolloutTask], partition: int) -> str:
        self.records.append((partition, [task.task_id for task in tasks]))
        return "delivered"


def records_of(*tasks: RolloutTask, max_tasks: int = most_tasks_in_record) -> list[list[str]]:
    sent = Sent()
    outbox = TaskOutbox(sent, max_tasks=max_tasks, accepts_batches=lambda _: True)  # type: ignore[arg-type]
    for task in tasks:
        outbox.add(OpenTask(task=task, worker_id="w", remaining={0}), 0)
    outbox.send()
    outbox.send()  # nothing is sent twice
    return [names for _, names in sent.records]


def test_a_record_holds_no_more_tasks_than_it_may() -> None:
    tasks = [a_task(number) for number in range(5)]
    assert records_of(*tasks, max_tasks=2) == [["1.0", "1.100"], ["1.200", "1.300"], ["1.400"]]


def test_a_long_prompt_goes_alone() -> None:
    long = Prompt(prompt_id="long", text="x" * (1 << 17))
    tasks = [a_task(0), a_task(1, prompt=long), a_task(2), a_task(3)]
    assert records_of(*tasks) == [["1.0"], ["1.100"], ["1.200", "1.300"]]


def test_tasks_that_are_too_large_for_one_record_of_the_run_go_in_several() -> None:
    """Where a cluster allows small records only: 4 tasks with prompts of 20 KB do not fit into 64 KiB."""
    broker = BrokerConfig(samples_partitions=2, max_workers=max_workers, max_record_bytes=1 << 16)
    driver = started_driver(broker=broker)
    driver.prompts = [replace(prompt, text="é" * 10_000) for prompt in driver.prompts]
    dispatcher = driver.dispatcher()
    heard(driver)
    driver.turn(dispatcher)
    assert [len(tasks_in(each)) for each in orders(driver)] == [2, 2]
    assert {each.known_offset() for each in dispatcher.state.credits.all()} == {1, 2}


def test_the_largest_setting_is_what_a_record_may_hold() -> None:
    assert DispatchConfig(max_tasks_per_record=most_tasks_in_record).max_tasks_per_record == 256
    with pytest.raises(ValueError, match="max_tasks_per_record"):
        DispatchConfig(max_tasks_per_record=most_tasks_in_record + 1)


def test_a_worker_takes_the_tasks_of_a_batch_as_if_each_stood_there_alone() -> None:
    alone, together = SessionDriver(capacity=2), SessionDriver(capacity=2)
    tasks = [a_task(number) for number in range(3)]
    apart = [
        action for offset, task in enumerate(tasks) for action in alone.session.on_task(task, 10 + offset)
    ]
    assert together.session.on_task(TaskBatch(tasks=tuple(tasks)), 10) == apart
    assert [action.task.task_id for action in apart if isinstance(action, Start)] == ["1.0", "1.100"]
    assert together.session.open_task_ids == alone.session.open_task_ids
    assert together.session.tasks_position == 11


def test_a_batch_behind_a_later_fence_is_void_and_a_second_copy_too() -> None:
    driver = SessionDriver()
    batch = TaskBatch(tasks=(a_task(0), a_task(1)))
    assert len(driver.session.on_task(batch, 10)) == 2
    assert driver.session.on_task(batch, 11) == []
    driver.session.on_task(Fence(epoch=2), 12)
    assert driver.session.on_task(TaskBatch(tasks=(a_task(2),)), 13) == []


def test_a_batch_with_a_task_that_cannot_be_is_refused_as_a_whole() -> None:
    limits = TaskLimits(num_sample_partitions=2, num_replicas=2)
    batch = TaskBatch(tasks=(a_task(0), a_task(1, sample_partition=2)))
    with pytest.raises(SchemaError, match="wants its samples in partition 2"):
        limits.decoded(Record(topic="tasks", partition=0, offset=0, value=encode(batch)))


@pytest.mark.parametrize("num_tasks", [0, most_tasks_in_record + 1])
def test_a_batch_of_none_or_of_too_many_is_no_record(num_tasks: int) -> None:
    with pytest.raises(SchemaError, match="1 to 256 are needed"):
        encode(TaskBatch(tasks=(a_task(0),) * num_tasks))
