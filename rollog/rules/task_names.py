"""How the tasks of a run are named and seeded: who reads one can tell whether a dispatcher of the run wrote it."""

from __future__ import annotations

from dataclasses import dataclass

from rollog.rules.seeds import derived_seed
from schemas import Kind, RolloutTask

_most_digits = 18


def task_id_of(epoch: int, sequence: int) -> str:
    """(epoch, sequence) as one word."""
    return f"{epoch}.{sequence}"


def sequence_of(task_id: str) -> tuple[int, int]:
    """(epoch, sequence) of such a name: in this order tasks are issued."""
    epoch, _, sequence = task_id.partition(".")
    return (int(epoch), int(sequence))


def is_task_id(task_id: str) -> bool:
    """Whether a dispatcher can have named a task so. 1.07 is no other way to write 1.7: a number is one task."""
    epoch, _, sequence = task_id.partition(".")
    is_number = all(
        part.isdecimal() and part.isascii() and len(part) <= _most_digits for part in (epoch, sequence)
    )
    return is_number and task_id == task_id_of(int(epoch), int(sequence))


def training_seed(run_seed: int, group_id: int, replica: int, attempt: int) -> int:
    """The sampling seed of one attempt at a replica."""
    return derived_seed(run_seed, group_id, replica, attempt)


def evaluation_seed(run_seed: int, name: str, version: int, prompt_index: int, attempt: int) -> int:
    """The sampling seed of one attempt at a held-out prompt."""
    return derived_seed(run_seed, name, version, prompt_index, attempt)


@dataclass(frozen=True, slots=True)
class TasksOfRun:
    """The tasks that dispatchers of one run can have issued; `num_replicas` are those of a group."""

    run_seed: int
    num_replicas: int

    def includes(self, task: RolloutTask) -> bool:
        """Whether identity and seed of a task found in the log fit each other, as those of every task of the run do.

        Others may be able to write to `tasks`; what they wrote is no task to wait for.
        """
        if not is_task_id(task.task_id) or sequence_of(task.task_id)[0] != task.epoch:
            return False
        if task.replica + task.num_replicas > self.num_replicas:
            return False
        if task.kind is Kind.EVALUATION:
            return task.seed == evaluation_seed(
                self.run_seed, task.evaluation or "", task.pinned_version or 0, task.group_id, task.attempt
            )
        return task.seed == training_seed(self.run_seed, task.group_id, task.replica, task.attempt)
