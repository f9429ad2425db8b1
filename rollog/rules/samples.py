"""The sample in which a task ends: which fields of the task it repeats, whoever writes it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from schemas import Sample, sample_id

if TYPE_CHECKING:
    from schemas import RolloutTask, Status


def sample_of_task(task: RolloutTask, replica: int, *, status: Status, worker_id: str, seed: int) -> Sample:
    """The record in which `replica` of a task ends, with nothing in it but what the task says.

    `replica` is the number within the group, from `task.replica` on; `seed` the one it was sampled with.
    """
    return Sample(
        sample_id=sample_id(task.group_id, replica, task.attempt),
        task_id=task.task_id,
        kind=task.kind,
        status=status,
        epoch=task.epoch,
        grant_id=task.grant_id,
        worker_id=worker_id,
        group_id=task.group_id,
        replica=replica,
        attempt=task.attempt,
        prompt_id=task.prompt.prompt_id,
        seed=seed,
        temperature=task.sampling.temperature,
        pinned_version=task.pinned_version,
        evaluation=task.evaluation,
        metadata=task.metadata,
    )
