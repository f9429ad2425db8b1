"""Tasks that are issued in one turn, on their way into the log: several for one worker go in one record."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from producers.dispatcher.credits import OpenTask
    from producers.dispatcher.sender import TaskSender
    from schemas import Prompt

_most_prompt_characters = 1 << 17
"""Of the prompts of one record, all together: a task whose prompt is longer goes alone."""


class TaskOutbox:
    """Tasks of one turn by the partition of their worker's grant; empty between two turns.

    A record holds up to `max_tasks` of them where `accepts_batches` says so of the worker, and no more than
    `broker.max_record_bytes` hold. All tasks of a record stand in the log or none does, at one offset.

    Example: a turn issues 1.1 to w, 1.2 to v and 1.3 to w. The partition of w gets one record with 1.1 and 1.3, that of
    v the task 1.2 by itself.
    """

    def __init__(self, sender: TaskSender, *, max_tasks: int, accepts_batches: Callable[[str], bool]) -> None:
        self._sender = sender
        self._max_tasks = max_tasks
        self._accepts_batches = accepts_batches
        self._tasks: defaultdict[int, list[OpenTask]] = defaultdict(list)

    def add(self, open_task: OpenTask, partition: int) -> None:
        """Send a task with the next `send`."""
        self._tasks[partition].append(open_task)

    def send(self) -> None:
        """Write everything that was added."""
        issued, self._tasks = self._tasks, defaultdict(list)
        for partition, open_tasks in issued.items():
            may_share = len(open_tasks) > 1 and self._accepts_batches(open_tasks[0].worker_id)
            for together in _records(open_tasks, self._max_tasks if may_share else 1):
                self._send(together, partition)

    def _send(self, open_tasks: Sequence[OpenTask], partition: int) -> None:
        delivery = self._sender.tasks([each.task for each in open_tasks], partition)
        if delivery is None:
            # Characters say little of bytes, and a run may have small records: what is too large goes in halves.
            half = len(open_tasks) // 2
            self._send(open_tasks[:half], partition)
            self._send(open_tasks[half:], partition)
            return
        for each in open_tasks:
            each.delivery = delivery


def _records(open_tasks: Sequence[OpenTask], max_tasks: int) -> Iterator[list[OpenTask]]:
    """The tasks of each record, in order."""
    together: list[OpenTask] = []
    num_characters = 0
    for each in open_tasks:
        length = _length(each.task.prompt)
        if together and (len(together) == max_tasks or num_characters + length > _most_prompt_characters):
            yield together
            together, num_characters = [], 0
        together.append(each)
        num_characters += length
    yield together


def _length(prompt: Prompt) -> int:
    return sum(len(text or "") for text in (prompt.text, prompt.messages_json, prompt.reward_inputs_json))
