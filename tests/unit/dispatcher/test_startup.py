"""What a dispatcher that takes a run over reads of the log."""

from __future__ import annotations

from builders import a_task

from producers.dispatcher.startup import History
from rollog.broker.ports import Record
from rollog.broker.topics import RunTopics
from schemas import Fence, RolloutTask
from schemas.codec import encode

topics = RunTopics("rollog", "run")


def on_tasks(value: RolloutTask | Fence, offset: int, partition: int = 0) -> Record:
    return Record(topic=topics.tasks, partition=partition, offset=offset, value=encode(value))


def test_a_task_behind_the_fence_of_a_later_epoch_is_void_on_its_own_partition_only() -> None:
    history = History(epoch=9, is_issued=lambda task: task.task_id != "2.2")
    for record in (
        on_tasks(a_task(0, 0, task_id="1.0", epoch=1), 0),
        on_tasks(Fence(epoch=2), 1),
        on_tasks(Fence(epoch=1), 2),
        on_tasks(a_task(0, 1, task_id="1.1", epoch=1), 3),
        on_tasks(a_task(0, 1, task_id="2.1", epoch=2), 4),
        on_tasks(a_task(0, 2, task_id="1.2", epoch=1), 0, partition=1),
    ):
        history.add(record, topics)
    assert [(task.task_id, offset) for task, offset in history.tasks] == [("1.0", 0), ("2.1", 4), ("1.2", 0)]
