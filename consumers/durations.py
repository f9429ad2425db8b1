"""What a run took: how long its rollouts held their slots and were scored, and how long its trainer trained on each.

Consumes `steps` and `samples`, from their beginnings to their ends at the time of the call. Produces nothing.
Records of `samples` that cannot be decoded are passed over: dead-lettering them is the trainer's task.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from consumers.ledger import folded, read_ledger
from rollog.kernel.broker.reading import read_to_end
from schemas import Disposition, Genesis, Sample, Status, Step
from schemas.codec import SchemaError, decode_as

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from consumers.ledger import LedgerEntry
    from rollog.kernel.broker.ports import Broker
    from rollog.kernel.broker.topics import RunTopics

Place = tuple[int, int]


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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ended:
    """One record of `samples`: where it is, how long it held a slot, and how long it was scored."""

    place: Place
    group_id: int
    is_finished: bool
    seconds: float
    score_seconds: float


def measure_durations(broker: Broker, topics: RunTopics) -> Durations:
    """Read a run, finished or not. Raises LedgerError for a broken chain, BrokerTimeout if reading stalls."""
    entries = read_ledger(broker, topics)
    ledger = folded(entries)
    ended = {rollout.place: rollout for rollout in _ended(broker, topics, len(ledger.low_water_marks))}
    finished = [rollout for rollout in ended.values() if rollout.is_finished]
    rollout_seconds = tuple(rollout.seconds for rollout in finished)
    steps = [entry.record.body for entry in entries if isinstance(entry.record.body, Step)]
    return Durations(
        rollout_seconds=rollout_seconds,
        seconds_by_group=tuple(_by_group(finished)),
        num_steps=len(steps),
        train_seconds_per_sample=_train_seconds_per_sample(steps, _world_size(entries)),
        batch=max((step.num_samples for step in steps), default=None),
        num_epochs=_num_epochs(steps[-1]) if steps else None,
        alpha=entries[-1].record.alpha if entries else None,
        rollouts_per_sample=_rollouts_per_sample(entries, ended, rollout_seconds),
        pass_share=_pass_share(entries),
        publish_seconds=_publish_seconds(steps),
        score_seconds=sum(rollout.score_seconds for rollout in finished) / len(finished)
        if finished
        else None,
    )


def _ended(broker: Broker, topics: RunTopics, num_partitions: int) -> Iterator[_Ended]:
    with broker.consumer(client_id="durations") as consumer:
        for partition in range(num_partitions):
            for record in read_to_end(consumer, topics.samples, partition):
                try:
                    sample = decode_as(Sample, record.value or b"")
                except SchemaError:
                    continue
                yield _Ended(
                    place=(partition, record.offset),
                    group_id=sample.group_id,
                    is_finished=sample.status is Status.FINISHED,
                    seconds=sample.timings.generation_seconds,
                    score_seconds=sample.timings.reward_seconds,
                )


def _by_group(finished: Sequence[_Ended]) -> Iterator[tuple[float, ...]]:
    groups: dict[int, list[float]] = {}
    for each in finished:
        groups.setdefault(each.group_id, []).append(each.seconds)
    return (tuple(groups[group_id]) for group_id in sorted(groups))


def _world_size(entries: Sequence[LedgerEntry]) -> int:
    bodies = (entry.record.body for entry in entries)
    return next((body.world_size for body in bodies if isinstance(body, Genesis)), 1)


def _num_epochs(step: Step) -> int:
    """The plan names each position once per pass; a step without a plan made one."""
    num_trained = sum(len(microbatch.positions) for microbatch in step.plan)
    return max(1, round(num_trained / step.num_samples)) if step.num_samples else 1


def _train_seconds_per_sample(steps: Sequence[Step], world_size: int) -> float | None:
    steps = steps[1:] or steps  # the first one loads and compiles what the others find
    num_passes = sum(step.num_samples * _num_epochs(step) for step in steps)
    seconds = sum(step.timings.train_seconds for step in steps)
    return seconds * world_size / num_passes if num_passes and seconds else None


def _rollouts_per_sample(
    entries: Sequence[LedgerEntry], ended: Mapping[Place, _Ended], rollout_seconds: Sequence[float]
) -> float | None:
    verdicts = [verdict for entry in entries for verdict in entry.record.verdicts]
    num_trained = sum(verdict.disposition is Disposition.TRAINED for verdict in verdicts)
    places = [(verdict.partition, verdict.offset) for verdict in verdicts]
    spent = sum(ended[place].seconds for place in places if place in ended)
    if not num_trained or not sum(rollout_seconds):
        return None
    return max(1.0, spent / (num_trained * sum(rollout_seconds) / len(rollout_seconds)))


def _pass_share(entries: Sequence[LedgerEntry]) -> float | None:
    outcomes = [group.outcome for entry in entries for group in entry.record.closed_groups]
    num_trained = outcomes.count(Disposition.TRAINED)
    return num_trained / len(outcomes) if num_trained else None


def _publish_seconds(steps: Sequence[Step]) -> float | None:
    times = [step.timings for step in steps]
    seconds = sum(time.publish_seconds + time.commit_seconds + time.checkpoint_seconds for time in times)
    return seconds / len(times) if times else None
