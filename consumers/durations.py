"""What a run took: how long its rollouts held their slots and were scored, and how long its trainer trained on each.

Consumes `steps` and `samples`, from their beginnings to their ends at the time of the call. Produces nothing.
Records of `samples` that cannot be decoded are passed over: dead-lettering them is the trainer's task. Holds three
numbers for each record of `samples`, and a few for each step.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass, field
from itertools import compress
from typing import TYPE_CHECKING

from consumers.ledger import StoredLedger
from rollog.kernel.broker.reading import read_to_end
from rollog.rules.ledger_state import LedgerState
from schemas import Disposition, Genesis, Sample, Status, Step
from schemas.codec import SchemaError, decode_as

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from consumers.ledger import LedgerEntry
    from rollog.kernel.broker.ports import Broker
    from rollog.kernel.broker.topics import RunTopics
    from schemas import StepTimings


@dataclass(frozen=True, slots=True, kw_only=True)
class Durations:
    """Figures of one run; None for what its topics do not tell (yet)."""

    rollout_seconds: tuple[float, ...]
    """Seconds that each finished rollout generated, and so held its slot, in the order of the topic."""
    seconds_by_group: tuple[tuple[float, ...], ...]
    """The same by group, in the order of the groups."""
    num_steps: int
    train_seconds_per_sample: float | None
    """Seconds one rank trains on one sample, once."""
    batch: int | None
    """Most samples any step trained on."""
    num_epochs: int | None
    """How often the newest step trained on each of its samples."""
    alpha: float | None
    """As the newest ledger record states it."""
    rollouts_per_sample: float | None
    """Slot time spent on everything that has a disposition, per sample trained, in mean rollouts."""
    pass_share: float | None
    """Share of the closed groups that were trained."""
    publish_seconds: float | None
    """Mean seconds of a step that no further device shortens: publishing, committing and checkpoints."""
    score_seconds: float | None
    """Mean seconds from the last token of a finished rollout to its reward."""

    @property
    def mean_seconds(self) -> float | None:
        """Mean of `rollout_seconds`."""
        return sum(self.rollout_seconds) / len(self.rollout_seconds) if self.rollout_seconds else None

    @property
    def max_seconds(self) -> float | None:
        """Longest of `rollout_seconds`."""
        return max(self.rollout_seconds, default=None)


@dataclass(slots=True)
class _Rollouts:
    """What ended on one partition of `samples`, in order of offset."""

    offsets: array[int] = field(default_factory=lambda: array("q"))
    seconds: array[float] = field(default_factory=lambda: array("d"))
    groups: array[int] = field(default_factory=lambda: array("q"))
    score_seconds: float = 0.0
    """Of those that finished, together."""
    are_finished: bytearray = field(default_factory=bytearray)

    def add(self, offset: int, sample: Sample) -> None:
        """One record."""
        self.offsets.append(offset)
        self.seconds.append(sample.timings.generation_seconds)
        self.groups.append(sample.group_id)
        self.are_finished.append(sample.status is Status.FINISHED)
        if sample.status is Status.FINISHED:
            self.score_seconds += sample.timings.reward_seconds

    def seconds_at(self, offset: int) -> float:
        """How long the one at an offset held its slot; 0 where none can be read."""
        index = bisect_left(self.offsets, offset)
        is_there = index < len(self.offsets) and self.offsets[index] == offset
        return self.seconds[index] if is_there else 0.0

    def finished(self) -> Iterator[tuple[int, float]]:
        """Group and seconds of each that finished."""
        return compress(zip(self.groups, self.seconds, strict=True), self.are_finished)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Taken:
    """One training step."""

    num_samples: int
    num_epochs: int
    timings: StepTimings


@dataclass(slots=True)
class _Taking:
    """What the ledger amounts to."""

    ledger: LedgerState = field(default_factory=LedgerState)
    steps: list[_Taken] = field(default_factory=list)
    world_size: int = 1
    num_closed: Counter[Disposition] = field(default_factory=Counter)
    num_trained: int = 0
    spent_seconds: float = 0.0
    """Slot time of everything that has a disposition."""


def measure_durations(broker: Broker, topics: RunTopics) -> Durations:
    """Read a run, finished or not. Raises LedgerError for a broken chain, BrokerTimeout if reading stalls."""
    entries = StoredLedger(broker, topics)
    first = entries.first()
    num_partitions = 0 if first is None else len(first.record.low_water_marks)
    rollouts = [_ended(broker, topics, partition) for partition in range(num_partitions)]
    taking = _folded(entries, rollouts)
    rollout_seconds = tuple(seconds for each in rollouts for _, seconds in each.finished())
    steps = taking.steps
    return Durations(
        rollout_seconds=rollout_seconds,
        seconds_by_group=tuple(_by_group(rollouts)),
        num_steps=len(steps),
        train_seconds_per_sample=_train_seconds_per_sample(steps, taking.world_size),
        batch=max((step.num_samples for step in steps), default=None),
        num_epochs=steps[-1].num_epochs if steps else None,
        alpha=taking.ledger.alpha if taking.ledger.next_sequence else None,
        rollouts_per_sample=_rollouts_per_sample(taking, rollout_seconds),
        pass_share=_pass_share(taking),
        publish_seconds=_publish_seconds(steps),
        score_seconds=sum(each.score_seconds for each in rollouts) / len(rollout_seconds)
        if rollout_seconds
        else None,
    )


def _ended(broker: Broker, topics: RunTopics, partition: int) -> _Rollouts:
    found = _Rollouts()
    with broker.consumer(client_id="durations") as consumer:
        for record in read_to_end(consumer, topics.samples, partition):
            try:
                found.add(record.offset, decode_as(Sample, record.value or b""))
            except SchemaError:
                continue
    return found


def _folded(entries: Iterable[LedgerEntry], rollouts: Sequence[_Rollouts]) -> _Taking:
    taking = _Taking()
    for entry in entries:
        record = entry.record
        taking.ledger.apply(record, entry.digest)
        for verdict in record.verdicts:
            taking.num_trained += verdict.disposition is Disposition.TRAINED
            taking.spent_seconds += rollouts[verdict.partition].seconds_at(verdict.offset)
        taking.num_closed.update(group.outcome for group in record.closed_groups)
        match record.body:
            case Genesis(world_size=world_size):
                taking.world_size = world_size
            case Step() as step:
                taken = _Taken(
                    num_samples=step.num_samples, num_epochs=_num_epochs(step), timings=step.timings
                )
                taking.steps.append(taken)
    return taking


def _by_group(rollouts: Iterable[_Rollouts]) -> Iterator[tuple[float, ...]]:
    groups: dict[int, array[float]] = {}
    for each in rollouts:
        for group_id, seconds in each.finished():
            groups.setdefault(group_id, array("d")).append(seconds)
    return (tuple(groups[group_id]) for group_id in sorted(groups))


def _num_epochs(step: Step) -> int:
    """The plan names each position, one per sequence of a sample, once per pass; a step without a plan made one."""
    named = [position for microbatch in step.plan for position in microbatch.positions]
    return max(1, round(len(named) / len(set(named)))) if named else 1


def _train_seconds_per_sample(steps: Sequence[_Taken], world_size: int) -> float | None:
    steps = steps[1:] or steps  # the first one loads and compiles what the others find
    num_passes = sum(step.num_samples * step.num_epochs for step in steps)
    seconds = sum(step.timings.train_seconds for step in steps)
    return seconds * world_size / num_passes if num_passes and seconds else None


def _rollouts_per_sample(taking: _Taking, rollout_seconds: Sequence[float]) -> float | None:
    if not taking.num_trained or not sum(rollout_seconds):
        return None
    mean_seconds = sum(rollout_seconds) / len(rollout_seconds)
    return max(1.0, taking.spent_seconds / (taking.num_trained * mean_seconds))


def _pass_share(taking: _Taking) -> float | None:
    num_trained = taking.num_closed[Disposition.TRAINED]
    return num_trained / taking.num_closed.total() if num_trained else None


def _publish_seconds(steps: Sequence[_Taken]) -> float | None:
    times = [step.timings for step in steps]
    seconds = sum(time.publish_seconds + time.commit_seconds + time.checkpoint_seconds for time in times)
    return seconds / len(times) if times else None
