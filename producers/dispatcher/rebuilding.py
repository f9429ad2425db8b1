"""Reading the log into a dispatcher's state, as a reader alone: from its beginning, or from a snapshot on.

Topic after topic, because each is judged by those before: control and the small topics, ledger, tasks, then samples and
evaluations. The ledger is read once: `rebuild` goes on from where `check` has come.

An old log has far more tasks than are open. So the samples that are judged are read before the tasks: of one whose
group is closed it counts only that it ended, and its task need not be opened. The others are read after the tasks.
Where samples were pruned, a task of a closed group counts as ended if its sample may have been among them. Tasks of
evaluations are opened, all that the log has, until the answers behind them are read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from producers.dispatcher.ended_attempts import EndedAttempts, replicas_of
from producers.dispatcher.history import SmallTopics, ValidTasks, worker_of
from producers.dispatcher.reader import LogReader
from producers.dispatcher.snapshot import FoldedLog, followed_partitions
from producers.dispatcher.state import DispatcherState
from rollog.kernel.broker.ports import TopicPartition
from rollog.kernel.broker.reading import place_of, read_until
from rollog.kernel.broker.topics import RunTopics
from rollog.kernel.metrics import Metrics
from rollog.rules.headers import SampleLimits
from rollog.rules.ledger_chain import LedgerChain
from rollog.rules.reading import read_summary
from rollog.rules.task_names import TasksOfRun
from schemas import Kind, most_tasks_in_record

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from producers.dispatcher.reader import SetsAside
    from producers.dispatcher.settings import DispatcherSettings
    from rollog.kernel.broker.ports import Consumer, Record
    from schemas import RolloutTask


@dataclass(frozen=True, slots=True, kw_only=True)
class Rebuilding:
    """How the log of one run is read by one consumer, which is assigned other partitions in every call."""

    settings: DispatcherSettings
    num_held_out: int
    consumer: Consumer

    @property
    def topics(self) -> RunTopics:
        """Those of the run."""
        return RunTopics(self.settings.prefix, self.settings.run)

    @property
    def _sample_limits(self) -> SampleLimits:
        return SampleLimits(
            num_partitions=self.settings.broker.samples_partitions,
            num_replicas=self.settings.groups.num_replicas,
            temperature=self.settings.sampling.temperature,
            has_late_rewards=self.settings.reward.late,
        )

    def ends(self) -> dict[TopicPartition, int]:
        """The ends of every partition that is read."""
        small = [TopicPartition(name, 0) for name in (self.topics.control, self.topics.workers)]
        return self.consumer.end_offsets([*small, *followed_partitions(self.settings)])

    def check(self, folded: FoldedLog, now: float) -> None:
        """Read all that a dispatcher can be refused for: samples and tasks refuse nobody. Folds the ledger alone.

        Raises LedgerError, TopicMismatch or DecodeError where the run cannot go on.
        """
        ends = self.ends()
        small = self._small_topics(folded, ends)
        self._fold_ledger(folded, ends)
        # What is read besides is read again under an epoch: it goes into a state of its own, which nobody keeps.
        scratch = DispatcherState(self.settings, self.num_held_out)
        small.fold_control(scratch, now)
        reader = self._reader(scratch, small, _LeftThere(), Metrics())
        for record in self._records(folded, ends, self.topics.evaluations):
            reader.take_in(record, now)

    def rebuild(
        self,
        folded: FoldedLog,
        ends: Mapping[TopicPartition, int],
        *,
        epoch: int,
        now: float,
        sender: SetsAside | None = None,
        metrics: Metrics | None = None,
    ) -> LogReader:
        """Fold the log up to `ends` into `folded`; returns the reader that goes on from there.

        `epoch` is the newest whose fences count. Without a sender nothing is set aside. Raises as `check`.
        """
        state, steps = folded.state, TopicPartition(self.topics.steps, 0)
        small = self._small_topics(folded, ends)
        small.fold_control(state, now)
        self._fold_ledger(folded, ends)
        ended, unread = self._read_judged(folded, ends)
        self._fold_tasks(folded, ends, epoch, ended)
        small.fold_workers(state)
        reader = self._reader(state, small, sender or _LeftThere(), metrics or Metrics())
        # Samples may be pruned while this reads: then they are of closed groups, and not needed.
        beginnings = self.consumer.beginning_offsets(list(unread))
        for record in self._read({place: max(unread[place], beginnings[place]) for place in unread}, ends):
            reader.take_in(record, now)
        for record in self._records(folded, ends, self.topics.evaluations):
            reader.take_in(record, now)
        reader.begin_at(ends, ledger_end=folded.positions.get(steps, 0))
        return reader

    def _small_topics(self, folded: FoldedLog, ends: Mapping[TopicPartition, int]) -> SmallTopics:
        topics = self.topics
        small = SmallTopics(topics, dead_lettered=set(folded.dead_lettered))
        for record in self._records(folded, ends, topics.control, topics.workers, topics.dead_letters):
            small.add(record)
        return small

    def _fold_ledger(self, folded: FoldedLog, ends: Mapping[TopicPartition, int]) -> None:
        ledger = folded.state.ledger
        chain = LedgerChain(ledger.next_sequence, ledger.head)
        for record in self._records(folded, ends, self.topics.steps):
            found = chain.take(record)
            if found is None:
                continue
            folded.state.on_ledger(*found)
            folded.positions[TopicPartition(record.topic, record.partition)] = record.offset + 1

    def _read_judged(
        self, folded: FoldedLog, ends: Mapping[TopicPartition, int]
    ) -> tuple[EndedAttempts, dict[TopicPartition, int]]:
        """Which attempts of closed groups have ended by the low-water marks, and from where samples are to be folded.

        That is the mark, or before it the first sample of a group that is not closed.
        """
        state, limits = folded.state, self._sample_limits
        ended = EndedAttempts(
            self.settings.groups.num_replicas,
            newest_epoch=state.control.epoch,
            num_tasks=most_tasks_in_record
            * sum(end for place, end in ends.items() if place.topic == self.topics.tasks),
        )
        begins = self._starts(folded, ends, self.topics.samples)
        marks = {
            place: min(max(begin, _low_water_mark(state, place.partition)), ends[place])
            for place, begin in begins.items()
        }
        unread = dict(marks)
        for record in self._read(begins, marks):
            header, sample = read_summary(record, limits)
            if header.group_id in state.ledger.closed_groups:
                state.on_sample(header, sample)  # its task may be among those that a snapshot holds open
                ended.add(header)
            elif header.group_id in state.ledger.tallies:
                place = place_of(record)
                unread[place] = min(unread[place], record.offset)
        return ended, unread

    def _fold_tasks(
        self, folded: FoldedLog, ends: Mapping[TopicPartition, int], epoch: int, ended: EndedAttempts
    ) -> None:
        state = folded.state
        of_run = TasksOfRun(self.settings.run_config.seed, self.settings.groups.num_replicas)
        beginnings = self.consumer.beginning_offsets(
            [place for place in ends if place.topic == self.topics.samples]
        )
        valid = ValidTasks(epoch, of_run.includes, known=folded.last_task)
        for record in self._records(folded, ends, self.topics.tasks):
            for task in valid.read(record):
                replicas: Collection[int] = ()
                if task.kind is Kind.TRAINING and task.group_id in state.ledger.closed_groups:
                    place = TopicPartition(self.topics.samples, task.sample_partition)
                    is_pruned = _began_before(task, beginnings.get(place, 0))
                    replicas = replicas_of(task) if is_pruned else ended.of(task)
                state.on_logged_task(task, worker_of(task, state), record.offset, replicas)

    def _records(
        self, folded: FoldedLog, ends: Mapping[TopicPartition, int], *topics: str
    ) -> Iterator[Record]:
        """What is to be read of some topics."""
        return self._read(self._starts(folded, ends, *topics), ends)

    def _read(
        self, starts: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]
    ) -> Iterator[Record]:
        """The partitions of `starts`; `ends` may know of others."""
        return read_until(self.consumer, starts, {place: ends[place] for place in starts})

    def _starts(
        self, folded: FoldedLog, ends: Mapping[TopicPartition, int], *topics: str
    ) -> dict[TopicPartition, int]:
        """Where reading some topics begins: at their beginnings, or where a snapshot has come."""
        starts = self.consumer.beginning_offsets([place for place in ends if place.topic in topics])
        for place, beginning in starts.items():
            position = folded.positions.get(place, 0)
            if place.topic == self.topics.samples:
                # Samples without a verdict are not in a snapshot, and all stand above these marks.
                position = min(position, _low_water_mark(folded.state, place.partition))
            starts[place] = max(beginning, position)
        return starts

    def _reader(
        self, state: DispatcherState, small: SmallTopics, sender: SetsAside, metrics: Metrics
    ) -> LogReader:
        settings = self.settings
        reader = LogReader(
            state,
            self.topics,
            sender=sender,
            metrics=metrics,
            limits=self._sample_limits,
            dead_lettered=small.dead_lettered,
            max_dead_letters_in_a_row=settings.broker.max_dead_letters_in_a_row,
        )
        reader.set_aside_unreadable(small.control, small.workers.values())
        return reader


class _LeftThere:
    """In the place of a sender, for who only reads: what cannot be read stays where it is."""

    def dead_letter(self, record: Record, reason: str) -> None:
        """Write nothing."""


def _began_before(task: RolloutTask, offset: int) -> bool:
    """Whether the task was ordered when its partition of `samples` was shorter than that."""
    positions = task.samples_positions
    return task.sample_partition < len(positions) and positions[task.sample_partition] < offset


def _low_water_mark(state: DispatcherState, partition: int) -> int:
    marks = state.ledger.low_water_marks
    return marks[partition] if partition < len(marks) else 0
