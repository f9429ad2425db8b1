"""What a dispatcher that takes a run over reads of the log."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from support.builders import a_task

from producers.dispatcher.history import ValidTasks
from rollog.kernel.broker.ports import Record
from rollog.kernel.broker.topics import RunTopics
from rollog.rules.seeds import derived_seed
from rollog.rules.task_names import TasksOfRun, evaluation_seed
from schemas import Fence, Kind, RolloutTask
from schemas.codec import encode

topics = RunTopics("rollog", "run")


an_evaluation = {
    "kind": Kind.EVALUATION,
    "evaluation": "greedy",
    "pinned_version": 2,
    "seed": evaluation_seed(0, "greedy", 2, 3, 0),
}


def on_tasks(value: RolloutTask | Fence, offset: int, partition: int = 0) -> Record:
    return Record(topic=topics.tasks, partition=partition, offset=offset, value=encode(value))


def test_a_task_behind_the_fence_of_a_later_epoch_is_void_on_its_own_partition_only() -> None:
    valid = ValidTasks(epoch=9, is_issued=lambda task: task.task_id != "2.2")
    records = (
        on_tasks(a_task(0, 0, task_id="1.0", epoch=1), 0),
        on_tasks(Fence(epoch=2), 1),
        on_tasks(Fence(epoch=1), 2),
        on_tasks(a_task(0, 1, task_id="1.1", epoch=1), 3),
        on_tasks(a_task(0, 1, task_id="2.1", epoch=2), 4),
        on_tasks(a_task(0, 2, task_id="1.2", epoch=1), 0, partition=1),
    )
    read = [(task.task_id, record.offset) for record in records for task in valid.read(record)]
    assert read == [("1.0", 0), ("2.1", 4), ("1.2", 0)]


def test_what_nobody_of_the_run_can_have_issued_is_passed_over() -> None:
    valid = ValidTasks(epoch=2, is_issued=lambda task: task.seed == 7)
    records: list[RolloutTask | Fence] = [
        a_task(0, 0, task_id="1.1", seed=7),
        a_task(0, 1, task_id="1.1", seed=7),
        a_task(5, 0, task_id="1.2", seed=8),
        Fence(epoch=2**40),
        a_task(1, 0, task_id="1.3", seed=7),
    ]
    read = [task for offset, record in enumerate(records) for task in valid.read(on_tasks(record, offset))]
    assert [task.task_id for task in read] == ["1.1", "1.3"]


def test_behind_a_snapshot_only_what_was_issued_later_counts_and_what_its_fences_do_not_void() -> None:
    valid = ValidTasks(epoch=4, is_issued=lambda _task: True, known=(3, 7))
    ids = ["2.9", "3.7", "3.8", "3.8", "4.1"]
    records = [
        on_tasks(a_task(0, 0, task_id=task_id, epoch=int(task_id[0])), offset)
        for offset, task_id in enumerate(ids)
    ]
    assert [task.task_id for record in records for task in valid.read(record)] == ["3.8", "4.1"]


@pytest.mark.parametrize(
    ("changes", "is_issued"),
    [
        ({}, True),
        ({"task_id": "2.1"}, False),
        ({"task_id": "1.-1"}, False),
        ({"task_id": "1." + "9" * 5000}, False),
        ({"task_id": "1"}, False),
        ({"task_id": "1.01"}, False),
        ({"seed": 1}, False),
        ({"attempt": 1}, False),
        ({"group_id": 2**62}, False),
        ({"replica": 4, "seed": derived_seed(0, 3, 4, 0)}, False),
        ({"num_replicas": 2**40}, False),
        (an_evaluation, True),
        (an_evaluation | {"num_replicas": 3}, True),
        (an_evaluation | {"num_replicas": 2**40}, False),
    ],
)
def test_a_task_of_the_run_has_an_id_of_its_epoch_and_the_seed_of_its_rollout(
    changes: dict[str, Any], is_issued: bool
) -> None:
    task = replace(a_task(3, 1, task_id="1.1", epoch=1, seed=derived_seed(0, 3, 1, 0)), **changes)
    assert TasksOfRun(0, num_replicas=4).includes(task) == is_issued
