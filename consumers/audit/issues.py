"""I5: what was issued again, against what had finished and was read when that was decided."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from hashlib import sha256
from typing import TYPE_CHECKING

from schemas import Disposition

if TYPE_CHECKING:
    from collections.abc import Iterator

    from consumers.audit.findings import Place
    from consumers.audit.judged import Judged
    from consumers.audit.ledger_index import LedgerIndex
    from consumers.audit.samples import RecordedSample
    from schemas import RolloutTask

_may_come_again = frozenset({Disposition.STALE, Disposition.UNREWARDED, Disposition.FAILED, Disposition.DEAD})


@dataclass(frozen=True, slots=True, kw_only=True)
class Reissue:
    """A task that orders another attempt, and how far its dispatcher had read the ledger and its samples partition."""

    place: Place
    task_id: str
    attempt: int
    digest: bytes
    ledger_position: int
    samples_position: int


@dataclass(slots=True)
class Reissues:
    """Takes in tasks in order, then samples.

    In a partition whose beginning is gone, nothing before the first fence is judged, because the fences that would void
    it may be gone, too. A task whose seed does not follow from run, group, replica and attempt was not issued by a
    dispatcher of the run. A dispatcher orders an attempt once, and gives each task an id of its own: where records that
    differ order the same attempt, or have the same id, somebody else wrote too, and it cannot be told which of them
    counts.
    """

    ledger: LedgerIndex
    cut_partitions: set[int]
    ledger_end: int
    by_rollout: dict[tuple[int, int], list[Reissue]] = field(default_factory=lambda: defaultdict(list))
    num_foreign: int = 0
    disputed: set[tuple[int, int, int]] = field(default_factory=set)
    """Attempts that are ordered by records of which it cannot be told whether they count."""
    _digests: dict[str, bytes] = field(default_factory=dict)
    """Of the first record of each task."""
    _ambiguous: set[str] = field(default_factory=set)
    """Ids of tasks that records which differ have."""

    def finished(self, recorded: RecordedSample, judged: Judged | None) -> None:
        """A finished rollout that can be trained: nobody may have ordered it again before it was judged."""
        sample = recorded.sample
        assert sample is not None
        for task in self._told_apart(sample.group_id, sample.replica):
            if recorded.offset >= task.samples_position or self._was_given_up(judged, task):
                continue
            if judged is None and not self.ledger.is_complete:
                self.ledger.checks.issues.num_unchecked += 1
                continue
            verdict = "no verdict" if judged is None else self._verdict(judged)
            self.ledger.checks.issues.find(
                f"group {sample.group_id}, replica {sample.replica} is issued again, though {sample.sample_id} at "
                f"partition {recorded.partition}, offset {recorded.offset} of samples had finished and was read",
                place=task.place,
                record_id=f"task {task.task_id}, attempt {task.attempt}",
                expected=f"stale, unrewarded, failed or dead before offset {task.ledger_position} of the ledger",
                found=verdict,
            )

    def _told_apart(self, group_id: int, replica: int) -> Iterator[Reissue]:
        tasks = self.by_rollout.get((group_id, replica), [])
        for task in tasks:
            has_rival = any(other.attempt == task.attempt and other.digest != task.digest for other in tasks)
            if has_rival or task.task_id in self._ambiguous:
                self.disputed.add((group_id, replica, task.attempt))
            else:
                yield task

    def task(self, task: RolloutTask, digest: bytes, place: Place, *, is_fenced: bool) -> None:
        """A task of training that orders another attempt and is not void; `is_fenced` if any fence stands before it."""
        check = self.ledger.checks.issues
        may_be_void = place.partition in self.cut_partitions and not is_fenced
        has_positions = 0 <= task.sample_partition < len(task.samples_positions)
        if may_be_void or not has_positions or task.ledger_position > self.ledger_end:
            check.num_unchecked += 1
            return
        if not has_seed_of_run(task, self.ledger.config.seed):
            self.num_foreign += 1
            return
        check.num_checked += 1
        if self._digests.setdefault(task.task_id, digest) != digest:
            self._ambiguous.add(task.task_id)
        reissue = Reissue(
            place=place,
            task_id=task.task_id,
            attempt=task.attempt,
            digest=digest,
            ledger_position=task.ledger_position,
            samples_position=task.samples_positions[task.sample_partition],
        )
        for replica in range(task.replica, task.replica + self._num_replicas(task)):
            self.by_rollout[(task.group_id, replica)].append(reissue)

    def _num_replicas(self, task: RolloutTask) -> int:
        return min(task.num_replicas, self.ledger.config.num_replicas or task.num_replicas)

    def _was_given_up(self, judged: Judged | None, task: Reissue) -> bool:
        if judged is None or judged.disposition not in _may_come_again:
            return False
        return self.ledger.entries[judged.entry].place.offset < task.ledger_position

    def _verdict(self, judged: Judged) -> str:
        return f"{judged.disposition} at offset {self.ledger.entries[judged.entry].place.offset}"


def has_seed_of_run(task: RolloutTask, seed: int | None) -> bool:
    """Whether the seed of a task follows from that of the run, where this is known: else no dispatcher issued it."""
    return seed is None or task.seed == sampling_seed(seed, task.group_id, task.replica, task.attempt)


def sampling_seed(*parts: object) -> int:
    """The seed of a rollout: 31 bits of the sha256 of run seed, group, replica and attempt, joined by slashes."""
    digest = sha256("/".join(map(str, parts)).encode()).digest()
    return int.from_bytes(digest[:4], "little") >> 1
