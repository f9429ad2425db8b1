"""The dispatcher's side of a fabricated run: its epoch, fences, grants and tasks.

The dispatcher's own `TaskWriter` and `TaskSender` build and address them; which task comes when is the caller's choice.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.growth.run_settings import held_out, num_workers, prompts
from producers.dispatcher.dataset import PromptOrder
from producers.dispatcher.evaluation_tracker import EvaluationKey, WantedEvaluation, greedy
from producers.dispatcher.sender import TaskSender
from producers.dispatcher.startup import fence_partitions, take_epoch
from producers.dispatcher.tasks import TaskWriter
from rollog.kernel.broker.ports import TopicPartition
from rollog.kernel.lifecycle import Component
from schemas import Grant

if TYPE_CHECKING:
    from producers.dispatcher.group_tracker import Wanted
    from producers.dispatcher.settings import DispatcherSettings
    from producers.dispatcher.tasks import IssuePosition
    from rollog.kernel.broker.ports import Broker
    from rollog.kernel.broker.topics import RunTopics
    from schemas import RolloutTask

flush_seconds = 600.0


def worker_name(number: int) -> str:
    """The worker that holds partition `number` of `tasks`."""
    return f"worker-{number}"


class Orders(Component):
    """A dispatcher that has taken the run over and given every worker its grant."""

    def __init__(self, broker: Broker, topics: RunTopics, settings: DispatcherSettings) -> None:
        self._producer = broker.producer(client_id="growth-tasks")
        self._epoch = take_epoch(broker, topics, "growth")
        self._sender = TaskSender(
            self._producer,
            topics,
            self._epoch,
            settings.broker.samples_partitions,
            max_record_bytes=settings.broker.max_record_bytes,
        )
        self._writer = TaskWriter(settings, self._epoch)
        self._prompts, self._held_out = prompts(), held_out()
        self._order = PromptOrder(
            num_prompts=len(self._prompts), seed=settings.run_config.seed, shuffle=settings.data.shuffle
        )
        self._num_issued = 0
        self.grants = self._granted(fence_partitions(self._sender, topics, num_workers), topics)

    def close(self) -> None:
        """Close the producer."""
        self._producer.close()

    def flush(self) -> None:
        """Wait until every task is in the log."""
        self._producer.flush(flush_seconds)

    def training(self, wanted: Wanted, position: IssuePosition) -> RolloutTask:
        """Issue one attempt at a replica to the next worker."""
        grant = self._next_grant()
        prompt = self._prompts[self._order.prompt_index(wanted.group_id)]
        return self._sent(self._writer.training(wanted, prompt, grant.grant_id, position), grant)

    def evaluations(self, version: int, position: IssuePosition) -> list[RolloutTask]:
        """Issue every held-out prompt once, pinned to `version`."""
        tasks = []
        for index, prompt in enumerate(self._held_out):
            wanted = WantedEvaluation(key=EvaluationKey(version, greedy), prompt_index=index, attempt=0)
            grant = self._next_grant()
            tasks.append(self._sent(self._writer.evaluation(wanted, prompt, grant.grant_id, position), grant))
        return tasks

    def _granted(self, fences: dict[TopicPartition, int], topics: RunTopics) -> dict[str, Grant]:
        grants = [
            Grant(
                grant_id=f"{self._epoch}.{number + 1}",
                epoch=self._epoch,
                worker_id=worker_name(number),
                partition=number,
                start_offset=fences[TopicPartition(topics.tasks, number)],
            )
            for number in range(num_workers)
        ]
        for grant in grants:
            self._sender.control(grant)
        return {grant.grant_id: grant for grant in grants}

    def _next_grant(self) -> Grant:
        self._num_issued += 1
        return list(self.grants.values())[self._num_issued % num_workers]

    def _sent(self, task: RolloutTask, grant: Grant) -> RolloutTask:
        self._sender.tasks([task], grant.partition)
        return task
