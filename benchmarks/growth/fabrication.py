"""A run as long as one likes, written as its roles would write it, in a small part of their time.

Every record is built and addressed by the code that does it in a run. What the roles decide is decided here: tasks of a
batch are issued two steps ahead, as alpha 1 allows, half of a batch is one version old, every tenth step has a rollout
that failed and was issued again and a group without signal, and evaluations come now and then. At its end the run is
open: of the next batch some samples have arrived, others are missing, and the grants are live.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from benchmarks.growth.answers import Answers
from benchmarks.growth.decisions import Decisions
from benchmarks.growth.orders import Orders
from benchmarks.growth.run_settings import (
    evaluate_every_steps,
    group_size,
    groups_per_batch,
    growth_settings,
    num_partitions,
)
from producers.dispatcher.group_tracker import Wanted
from producers.dispatcher.tasks import IssuePosition
from rollog.kernel.broker.ports import TopicPartition
from rollog.kernel.broker.topics import RunTopics
from rollog.kernel.errors import BrokerError
from rollog.rules.ledger_state import num_weights_digits
from rollog.run.creation import create_run
from rollog.run.role_settings import dispatcher_settings, trainer_settings
from schemas import IssueReason

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from rollog.kernel.broker.ports import Broker, Consumer
    from rollog.rules.headers import SampleHeader
    from schemas import RolloutTask, Sample

mishap_every_steps = 10
"""Steps between those with a failed rollout and a group without signal."""
_beat_every_steps = 10
_tell_every_steps = 500
_groups_ended_in_tail = groups_per_batch // 2
"""Groups of the batch after the last step of which every sample has arrived; of as many more half have."""


@dataclass(slots=True)
class Batch:
    """The groups that one step trains or filters, by number: the tasks of each, in order of replica."""

    issued_version: int
    tasks: dict[int, list[RolloutTask]] = field(default_factory=dict)


def fabricate(
    broker: Broker,
    name: str,
    *,
    num_steps: int,
    seed: int,
    home: Path,
    on_progress: Callable[[str], None] = lambda _: None,
) -> RunTopics:
    """Create a run and write `num_steps` steps of it, and the open tail after them; none for 0 steps.

    Raises RunExists, and BrokerError where somebody else wrote to its topics.
    """
    settings = growth_settings(name, seed=seed, home=home, num_steps=num_steps)
    manifest = create_run(broker, settings)
    topics = RunTopics(manifest.prefix, manifest.run)
    with ExitStack() as opened:
        decisions = opened.enter_context(
            Decisions(broker, topics, trainer_settings(settings, manifest, home))
        )
        orders = opened.enter_context(Orders(broker, topics, dispatcher_settings(settings, home)))
        answers = opened.enter_context(
            Answers(broker, topics, dispatcher_settings(settings, home), orders.grants, seed)
        )
        consumer = opened.enter_context(broker.consumer(client_id="growth"))
        run = _FabricatedRun(topics, decisions, orders, answers, consumer)
        run.begin()
        if num_steps:
            for number in range(1, num_steps + 1):
                run.step()
                if number % _tell_every_steps == 0:
                    on_progress(f"{name}: {number} of {num_steps} steps written")
            run.leave_open()
        run.end()
    return topics


class _FabricatedRun:
    """The roles of one run, in turns."""

    def __init__(
        self, topics: RunTopics, decisions: Decisions, orders: Orders, answers: Answers, consumer: Consumer
    ) -> None:
        self._steps = TopicPartition(topics.steps, 0)
        self._samples = [TopicPartition(topics.samples, number) for number in range(num_partitions)]
        self._decisions = decisions
        self._orders = orders
        self._answers = answers
        self._consumer = consumer
        self._batches: list[Batch] = []
        self._num_groups = 0
        self._num_batches = 0
        self._read_tasks = {grant.grant_id: grant.start_offset for grant in orders.grants.values()}

    @property
    def _version(self) -> int:
        return self._decisions.ledger.version

    def begin(self) -> None:
        """Commit genesis; the workers serve version 0."""
        self._decisions.begin()
        self._serve()
        self._beat()

    def step(self) -> None:
        """Issue what may be open, end the oldest batch, and train it."""
        while len(self._batches) < 2:  # noqa: PLR2004 - 1 + alpha
            self._issue()
        batch = self._batches.pop(0)
        number = self._version + 1
        if self._version % evaluate_every_steps == 0:
            self._evaluate()
        if number % mishap_every_steps == 0:
            self._fail(batch)
        groups = {group: self._end(batch, group, index) for index, group in enumerate(batch.tasks)}
        self._decisions.step(groups, self._answers.positions)
        self._serve()
        if number % _beat_every_steps == 0:
            self._beat()

    def leave_open(self) -> None:
        """Issue as far as alpha allows, and end some of it: nothing of that is judged."""
        while len(self._batches) < 2:  # noqa: PLR2004 - 1 + alpha
            self._issue()
        batch = self._batches[0]
        for index, group in enumerate(list(batch.tasks)):
            if index < _groups_ended_in_tail:
                self._end(batch, group, index)
                batch.tasks[group] = []
            elif index < 2 * _groups_ended_in_tail:
                half = batch.tasks[group][: group_size // 2]
                for replica, task in enumerate(half):
                    self._answers.finish(task, batch.issued_version, _reward(group, replica))
                batch.tasks[group] = batch.tasks[group][group_size // 2 :]
        self._beat()

    def end(self) -> None:
        """Wait for the log, and write the newest weights and their checkpoint."""
        self._orders.flush()
        self._answers.flush()
        self._decisions.end()
        ends = self._consumer.end_offsets(self._samples)
        if [ends[place] for place in self._samples] != self._answers.positions:
            raise BrokerError(f"{self._samples[0].topic} ends at other offsets than were written: {ends}")

    def _issue(self) -> None:
        """One batch, and in every tenth one group more, which will be filtered."""
        self._num_batches += 1
        has_mishap = self._num_batches % mishap_every_steps == 0
        batch = Batch(issued_version=self._version)
        position = self._position()
        num_ahead = sum(len(other.tasks) for other in self._batches)
        for index in range(groups_per_batch + has_mishap):
            group = self._num_groups
            self._num_groups += 1
            batch.tasks[group] = [
                self._order(_wanted(group, replica, num_ahead + index), position)
                for replica in range(group_size)
            ]
        self._batches.append(batch)

    def _end(self, batch: Batch, group: int, index: int) -> list[tuple[SampleHeader, Sample]]:
        """Finish a group: with the version it was issued under, or in the second half with the newest."""
        version = batch.issued_version if index < groups_per_batch // 2 else self._version
        has_signal = index < groups_per_batch
        return [
            self._answers.finish(task, version, _reward(group, replica) if has_signal else 0.0)
            for replica, task in enumerate(batch.tasks[group])
        ]

    def _fail(self, batch: Batch) -> None:
        """The first rollout of a batch fails; the trainer says so, and it is issued again."""
        group, tasks = next(iter(batch.tasks.items()))
        before = tuple(self._answers.positions)
        header = self._answers.fail(tasks[0])
        marks = tuple(position + (number == header.partition) for number, position in enumerate(before))
        self._decisions.fail(header, marks)
        again = _wanted(group, 0, 0, attempt=1, reason=IssueReason.FAILED)
        tasks[0] = self._order(again, self._position())

    def _evaluate(self) -> None:
        for task in self._orders.evaluations(self._version, self._position()):
            self._read_tasks[task.grant_id] += 1
            self._answers.evaluate(task, self._version)

    def _order(self, wanted: Wanted, position: IssuePosition) -> RolloutTask:
        task = self._orders.training(wanted, position)
        self._read_tasks[task.grant_id] += 1
        return task

    def _serve(self) -> None:
        ledger = self._decisions.ledger
        self._answers.serve(ledger.version, ledger.weights[ledger.version][:num_weights_digits])

    def _beat(self) -> None:
        open_tasks = [task for batch in self._batches for tasks in batch.tasks.values() for task in tasks]
        self._answers.beat(self._version, open_tasks, self._read_tasks)

    def _position(self) -> IssuePosition:
        """What a dispatcher that is not behind has read."""
        return IssuePosition(
            version=self._version,
            alpha=self._decisions.ledger.alpha,
            ledger_position=self._consumer.end_offsets([self._steps])[self._steps],
            samples_positions=tuple(self._answers.positions),
        )


def _wanted(
    group: int, replica: int, num_ahead: int, *, attempt: int = 0, reason: IssueReason = IssueReason.FIRST
) -> Wanted:
    return Wanted(
        group_id=group,
        replica=replica,
        attempt=attempt,
        reason=reason,
        num_groups_ahead=num_ahead,
        protected=False,
    )


def _reward(group: int, replica: int) -> float:
    """Every group has signal."""
    return float((group + replica) % 2)
