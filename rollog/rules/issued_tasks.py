"""Which rollouts were ordered, and whether a sample is one of them.

Anybody may be able to write to `samples`. A sample counts for its group only if the log holds the task that ordered it,
and if the sample says of itself what task and grant say. Dispatcher and trainer ask the same questions here.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import astuple, dataclass, field, replace
from typing import TYPE_CHECKING, Any, Self

from rollog.rules.headers import foreign_header
from schemas import Kind, Status

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from rollog.rules.headers import SampleHeader
    from schemas import Grant, RolloutTask, Sample
    from schemas.sample_summary import SampleSummary

_seed_stride = 0x9E3779B1


def replica_seed(task_seed: int, index: int) -> int:
    """The sampling seed of the rollout `index` of a task: its own for the first, a function of it for the others."""
    return (task_seed + index * _seed_stride) % (1 << 31)


def _orders(task: RolloutTask | IssuedTask, replica: int) -> bool:
    """Whether this replica is among those that a task makes."""
    return 0 <= replica - task.replica < task.num_replicas


def _seed_of(sample: Sample | SampleSummary, task: RolloutTask | IssuedTask) -> int:
    """The seed with which a sample of this task is drawn."""
    return replica_seed(task.seed, sample.replica - task.replica)


def is_of_task(header: SampleHeader, task: RolloutTask) -> bool:
    """Whether a record that names a training task can be one of its rollouts."""
    return task.kind is Kind.TRAINING and header.group_id == task.group_id and _orders(task, header.replica)


def answers(sample: Sample, task: RolloutTask) -> bool:
    """Whether a record of `evaluations` that names this task is the answer it asked for, or says that none comes."""
    is_same = sample.evaluation is None or (sample.evaluation, sample.pinned_version) == (
        task.evaluation,
        task.pinned_version,
    )
    is_drawn = sample.status is not Status.FINISHED or sample.seed == _seed_of(sample, task)
    is_for_group = task.kind is Kind.EVALUATION and sample.group_id == task.group_id
    return (
        is_for_group
        and _orders(task, sample.replica)
        and is_same
        and is_drawn
        and sample.grant_id == task.grant_id
    )


@dataclass(frozen=True, slots=True)
class IssuedTask:
    """What a sample of a task must repeat, and where the task stands."""

    partition: int
    offset: int
    epoch: int
    grant_id: str
    group_id: int
    replica: int
    num_replicas: int
    attempt: int
    seed: int


@dataclass(slots=True)
class IssuedTasks:
    """The training tasks of groups that are not closed, by id, and the fences of each partition.

    The caller forgets groups as they close, so this is bounded by what is open.

    Example: partition 0 holds task 1.7 at offset 3 and a fence of epoch 2 at offset 5. A sample of 1.7 counts. A task
    1.9 at offset 8, written late by the overtaken dispatcher of epoch 1, is void: no sample of it counts.
    """

    _tasks: dict[str, IssuedTask] = field(default_factory=dict)
    _of_group: defaultdict[int, list[str]] = field(default_factory=lambda: defaultdict(list))
    _fences: defaultdict[int, list[tuple[int, int]]] = field(default_factory=lambda: defaultdict(list))

    def add(self, task: RolloutTask, *, partition: int, offset: int) -> None:
        """A task that is in the log; of several with one id the first counts, as for workers."""
        if task.kind is not Kind.TRAINING or task.task_id in self._tasks:
            return
        self._tasks[task.task_id] = IssuedTask(
            partition=partition,
            offset=offset,
            epoch=task.epoch,
            grant_id=task.grant_id,
            group_id=task.group_id,
            replica=task.replica,
            num_replicas=task.num_replicas,
            attempt=task.attempt,
            seed=task.seed,
        )
        self._of_group[task.group_id].append(task.task_id)

    def add_fence(self, epoch: int, *, partition: int, offset: int) -> None:
        """Tasks of lower epochs are void behind this offset, if the epoch exists."""
        self._fences[partition].append((offset, epoch))

    def forget(self, group_ids: Iterable[int]) -> None:
        """These groups are closed: their samples are judged without their tasks."""
        for group_id in group_ids:
            for task_id in self._of_group.pop(group_id, ()):
                del self._tasks[task_id]

    @property
    def group_ids(self) -> list[int]:
        """Groups with tasks that are not forgotten, in order."""
        return sorted(self._of_group)

    def __len__(self) -> int:
        return len(self._tasks)

    def to_plain(self) -> dict[str, Any]:
        """As JSON has it."""
        return {
            "tasks": [[task_id, *astuple(task)] for task_id, task in self._tasks.items()],
            "fences": [
                [partition, offset, epoch]
                for partition, fences in self._fences.items()
                for offset, epoch in fences
            ],
        }

    @classmethod
    def from_plain(cls, plain: dict[str, Any]) -> Self:
        """What `to_plain` gave. Raises ValueError, TypeError or KeyError for anything else."""
        read = cls()
        for task_id, *facts in plain["tasks"]:
            task = IssuedTask(*facts)
            read._tasks[str(task_id)] = task
            read._of_group[int(task.group_id)].append(task_id)
        for partition, offset, epoch in plain["fences"]:
            read.add_fence(int(epoch), partition=int(partition), offset=int(offset))
        return read

    def placed(
        self,
        header: SampleHeader,
        sample: Sample | SampleSummary | None,
        *,
        grants: Mapping[str, Grant],
        newest_epoch: int,
        other_writers: frozenset[str] = frozenset(),
    ) -> SampleHeader:
        """The header as it counts: of no group where the log does not know its task, grant, seed or worker.

        `grants` are those of `control` by id, `newest_epoch` is the newest there, `other_writers` may add to groups
        that were issued. Without a sample (the record is dead) only what the header names is compared. Samples of
        closed groups are not asked about.
        """
        if sample is not None and sample.worker_id in other_writers:
            if header.is_waiting:
                return foreign_header(header, "it waits for a reward; samples of other writers bring theirs")
            if header.group_id in self._of_group:
                return replace(header, is_by_other=True)
            return foreign_header(header, f"group {header.group_id} was never issued")
        misfit = self._misfit_of_task(header, newest_epoch)
        if misfit is None and sample is not None:
            misfit = _misfit_of_sample(sample, self._tasks[header.task_id], grants)
        return header if misfit is None else foreign_header(header, misfit)

    def has_group(self, group_id: int) -> bool:
        """Whether a task of this group has been read."""
        return group_id in self._of_group

    def knows(self, header: SampleHeader, *, grants: Mapping[str, Grant], newest_epoch: int) -> bool:
        """Whether all has been read that says where a sample comes from: its task, its grant, epochs of fences."""
        task = self._tasks.get(header.task_id)
        if task is None or task.grant_id not in grants:
            return False
        return all(
            epoch <= newest_epoch for offset, epoch in self._fences[task.partition] if offset < task.offset
        )

    def _misfit_of_task(self, header: SampleHeader, newest_epoch: int) -> str | None:
        task = self._tasks.get(header.task_id)
        if task is None:
            return f"task {header.task_id[:80]} of group {header.group_id} was never issued"
        fences = self._fences[task.partition]
        if any(offset < task.offset and task.epoch < epoch <= newest_epoch for offset, epoch in fences):
            return f"task {header.task_id} is void: it stands behind the fence of a later dispatcher"
        is_ordered = _orders(task, header.replica)
        if header.group_id != task.group_id or not is_ordered or header.attempt != task.attempt:
            return (
                f"group {header.group_id}, replica {header.replica}, attempt {header.attempt}, but task "
                f"{header.task_id} ordered group {task.group_id}, replica {task.replica}, attempt {task.attempt}"
            )
        return None


def _misfit_of_sample(
    sample: Sample | SampleSummary, task: IssuedTask, grants: Mapping[str, Grant]
) -> str | None:
    # What never ended as a rollout may be written without its seed: for a task that could not be read, for a lost one.
    expected = _seed_of(sample, task)
    if sample.status is Status.FINISHED and sample.seed != expected:
        return f"drawn with seed {sample.seed}, task {sample.task_id} ordered {expected}"
    if sample.grant_id != task.grant_id:
        return f"under grant {sample.grant_id[:80]}, task {sample.task_id} was issued under {task.grant_id}"
    grant = grants.get(task.grant_id)
    # Lost ones are the dispatcher's own, and it may not know any more who held the grant.
    if sample.status is Status.LOST:
        return None
    if grant is None:
        return f"grant {task.grant_id} of task {sample.task_id} was never given"
    if sample.worker_id != grant.worker_id:
        return f"written by {sample.worker_id[:80]}, grant {task.grant_id} is {grant.worker_id}'s"
    return None
