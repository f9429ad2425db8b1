"""The groups of a run as the dispatcher sees them, and which attempts to issue next.

Pure. A verdict may be taken in before its sample; a task of an open group always comes before its samples.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from producers.dispatcher.group_progress import GroupProgress, Place, reason_of, reasons_by_disposition
from rollog.rules.admission import max_open_groups
from rollog.rules.alpha_control import may_become_fresh
from rollog.rules.freshness import is_stale
from rollog.rules.limits import ReplicaTally, is_exhausted
from rollog.rules.members import facts_of_group, fresh_and_ended, is_protected
from rollog.settings.in_force import section_in_force
from schemas import IssueReason, Kind, Rebase, Status, Step

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from producers.dispatcher.credits import OpenTask
    from rollog.rules.headers import SampleHeader
    from rollog.rules.ledger_state import LedgerState
    from rollog.rules.members import GroupFacts
    from rollog.settings.groups import FreshnessConfig, GroupConfig
    from schemas import LedgerRecord, RolloutTask


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """An attempt that should be issued."""

    group_id: int
    replica: int
    attempt: int
    reason: IssueReason
    num_groups_ahead: int
    protected: bool
    turns_position: int | None = None
    """Where the replica's turns begin, if an earlier attempt has named it."""
    resume_attempt: int | None = None
    """The earliest attempt whose turns may be taken over; None: begin anew."""


class GroupTracker:
    """Open groups, admission of new ones, and the attempts that are wanted.

    A group is open from its first task to its close in the ledger. It is early filtered while its first G fresh samples
    would be filtered: until the ledger closes it, or judges one of them stale. Of each of its replicas:

    | a replica is | reached by                                             | then                                   |
    | ---          | ---                                                    | ---                                    |
    | wanted       | the group opens; its attempt ended unfinished, or was  | its next attempt is issued, oldest     |
    |              | judged stale, failed, dead, lost or cancelled          | group first, unless G others finished  |
    | live         | a task for it is in the log                            | its sample is waited for               |
    | finished     | a finished sample is read that has no verdict yet      | the verdict is waited for              |
    | exhausted    | too many attempts failed or were lost                  | nothing more is issued for it          |

    Example: G is 2 with one redundant replica, and groups are protected after going stale once. Group 7 opens with
    tasks for replicas 0, 1 and 2. Samples of 0 and 2 finish: that is G of them, so the task of 1 is surplus and is
    cancelled. Then the ledger judges the sample of 0 stale. One finished sample is too few, so attempt 1 at replica 0
    (reason stale) and attempt 1 at replica 1 (reason cancelled) are wanted, both protected. When the ledger closes
    group 7, the tasks that are still live are returned to be cancelled.
    """

    def __init__(
        self, ledger: LedgerState, groups: GroupConfig, freshness: FreshnessConfig, num_steps: int
    ) -> None:
        self._ledger = ledger
        self._groups = groups
        self._freshness = freshness
        self._amended = (0, freshness)
        self._num_steps = num_steps
        self._progress: defaultdict[int, GroupProgress] = defaultdict(GroupProgress)
        self._group_at: dict[Place, int] = {}
        """Of every sample without a verdict the group whose progress holds it."""
        self._open: list[int] = []
        self._changed: set[int] = set()
        self._filtered: set[int] = set()
        self.next_group_id = 0

    @property
    def num_open(self) -> int:
        """Groups issued and not closed in the ledger."""
        return len(self._open)

    @property
    def num_early_filtered(self) -> int:
        """Open groups that will be filtered."""
        return len(self._filtered)

    def issued(self, task: RolloutTask) -> None:
        """Take in a valid task that is in the log; of an open group none of its samples has been taken in yet."""
        group = task.group_id
        self.next_group_id = max(self.next_group_id, group + 1)
        if group in self._ledger.closed_groups:
            return
        progress = self._progress[group]
        if not self._is_open(group):
            insort(self._open, group)
        for replica in range(task.replica, task.replica + task.num_replicas):
            progress.last_attempt[replica] = max(progress.last_attempt.get(replica, -1), task.attempt)
            progress.live[replica].add(task.task_id)
            if task.turns_position is not None:
                before = progress.turns_position.get(replica, task.turns_position)
                progress.turns_position[replica] = min(before, task.turns_position)
        self._changed.add(group)

    def began(self, task: RolloutTask, first_version: int) -> None:
        """Note under which version a running rollout began, the turns that it took over included."""
        progress = self._progress.get(task.group_id)
        if progress is not None and task.attempt >= progress.resume_floor.get(task.replica, 0):
            before = progress.oldest_version.get(task.replica, first_version)
            progress.oldest_version[task.replica] = min(before, first_version)

    def ended(self, header: SampleHeader) -> None:
        """Take in a record of `samples`: its replica is finished, or wanted again."""
        if header.group_id < 0 or header.group_id in self._ledger.closed_groups:
            return
        progress = self._progress[header.group_id]
        progress.live[header.replica].discard(header.task_id)
        attempt = max(progress.last_attempt.get(header.replica, -1), header.attempt)
        progress.last_attempt[header.replica] = attempt
        progress.ended(header)
        # The ledger may have been read further than samples: what it judged already is not counted twice.
        if not self._ledger.is_disposed(*header.place):
            self._group_at[header.place] = header.group_id
            if header.status is Status.FINISHED and header.defect is None:
                progress.finished[header.place] = header
            else:
                progress.endings[header.place] = header
                progress.last_reason[header.replica] = reason_of(header)
        self._changed.add(header.group_id)

    def judged(self, record: LedgerRecord) -> list[str]:
        """Take in the verdicts of a ledger record; returns the open tasks of groups that it closed."""
        for verdict in record.verdicts:
            self._forget_place((verdict.partition, verdict.offset))
            if verdict.group_id < 0 or verdict.group_id in self._ledger.closed_groups:
                continue
            progress = self._progress[verdict.group_id]
            if verdict.disposition in reasons_by_disposition:
                progress.last_reason[verdict.replica] = reasons_by_disposition[verdict.disposition]
            self._changed.add(verdict.group_id)
        if isinstance(record.body, Step | Rebase):
            # Samples may be read before the record of the version that made them: what was unknown then counts now.
            self._changed.update(group for group, progress in self._progress.items() if progress.finished)
        surplus: list[str] = []
        for group in record.closed_groups:
            progress = self._progress.pop(group.group_id, GroupProgress())
            for place in (*progress.finished, *progress.endings):
                self._group_at.pop(place, None)
            surplus.extend(task_id for tasks in progress.live.values() for task_id in tasks)
            self._forget(group.group_id)
        return surplus

    def lost(self, task: RolloutTask) -> None:
        """Note that a task was declared lost: its attempt is no longer live."""
        if task.group_id in self._progress:
            for replica in range(task.replica, task.replica + task.num_replicas):
                self._progress[task.group_id].live[replica].discard(task.task_id)
            self._changed.add(task.group_id)

    def to_plain(self) -> dict[str, Any]:
        """What `restore` needs beside the ledger and the open tasks, as JSON has it."""
        return {
            "next_group_id": self.next_group_id,
            "open": self._open,
            "progress": [[group, progress.to_plain()] for group, progress in self._progress.items()],
        }

    def restore(self, plain: dict[str, Any], open_tasks: Iterable[OpenTask]) -> None:
        """Bring an empty tracker to where `to_plain` was asked; samples without a verdict are to be taken in again.

        Raises ValueError, TypeError or KeyError for what `to_plain` did not give.
        """
        self.next_group_id = int(plain["next_group_id"])
        self._open = sorted(int(group) for group in plain["open"])
        for group, progress in plain["progress"]:
            self._progress[int(group)] = GroupProgress.from_plain(progress)
        for open_task in open_tasks:
            task = open_task.task
            if task.kind is Kind.TRAINING and task.group_id in self._progress:
                for replica in open_task.remaining:
                    self._progress[task.group_id].live[replica].add(task.task_id)
        self._changed = set(self._progress)

    def surplus_tasks(self, group: int) -> list[str]:
        """Open tasks of a group that already has enough finished samples."""
        progress = self._progress[group]
        finished = progress.finished_replicas()
        if len(finished) < self._groups.group_size:
            return []
        return [
            task_id
            for replica, tasks in progress.live.items()
            if replica not in finished
            for task_id in tasks
        ]

    def cannot_be_fresh(self, group: int, first_version: int) -> bool:
        """Whether a rollout that began under this version can only end stale, however soon it ends.

        It is stale already, and either alpha never rises enough again, or its group is protected: then training
        waits for the group under the alpha in force.
        """
        ledger = self._ledger
        if not is_stale(ledger.version, first_version, ledger.alpha):
            return False
        return self._is_protected(group) or not may_become_fresh(
            first_version, ledger.version, self._freshness_in_force()
        )

    def _freshness_in_force(self) -> FreshnessConfig:
        """The manifest's, with what amendments of the run have changed since."""
        if self._amended[0] != self._ledger.revision:
            in_force = section_in_force("freshness", self._freshness, self._ledger.changed_settings())
            self._amended = (self._ledger.revision, in_force)
        return self._amended[1]

    def take_changed(self) -> list[int]:
        """Open groups that changed since the last call, oldest first, with early filtering applied."""
        changed = sorted(group for group in self._changed if self._is_open(group))
        self._changed.clear()
        for group in changed:
            # Judging every sample of a group is dear at a thousand tasks a second, so only what may be complete is
            # judged. The trainer may read further and judge otherwise; its verdicts bring the group back here.
            may_be_complete = len(self._progress[group].finished) >= self._groups.group_size
            if may_be_complete and self._facts(group).refused_as is not None:
                self._filtered.add(group)
            else:
                self._filtered.discard(group)
        return changed

    def wanted(self, group: int) -> Iterator[Wanted]:
        """Attempts that an open group lacks, in order of replica: with redundant ones, until G samples are there.

        Redundancy counts for later attempts as for first ones, so that none of them must be waited for.
        """
        if not self._is_open(group):
            return
        progress = self._progress[group]
        # It has been replaced already: whatever else is made for it is thrown away.
        if group in self._filtered:
            return
        # A finished sample counts until the ledger has judged it, stale as it may look from here: issued again before
        # its verdict, the replica could be trained twice.
        finished = progress.finished_replicas()
        present = progress.live_replicas() | finished
        if len(finished) >= self._groups.group_size or len(present) >= self._groups.num_replicas:
            return
        tallies = self._facts(group).tallies
        for replica in range(self._groups.num_replicas):
            if replica in present:
                continue
            if is_exhausted(tallies.get(replica, ReplicaTally()), self._groups, self._freshness):
                continue
            present.add(replica)
            yield self._attempt(group, replica)

    def may_open(self) -> bool:
        """Whether one more group may be issued now (I9)."""
        return self.num_missing > 0

    @property
    def num_missing(self) -> int:
        """How many more groups may be issued now (I9)."""
        bound = max_open_groups(
            alpha=self._ledger.alpha,
            groups_per_batch=self._groups.groups_per_batch,
            steps_left=self._ledger.num_steps(self._num_steps) - self._ledger.version,
            redundant_groups=self._groups.redundant_groups,
            num_early_filtered=self.num_early_filtered,
        )
        return max(0, bound - len(self._open))

    def first_attempts(self, group: int) -> Iterator[Wanted]:
        """All attempts of a group that is about to be opened."""
        for replica in range(self._groups.num_replicas):
            yield Wanted(
                group_id=group,
                replica=replica,
                attempt=0,
                reason=IssueReason.FIRST,
                num_groups_ahead=len(self._open),
                protected=False,
            )

    def all_closed(self) -> bool:
        """Whether no issued group is open."""
        return not self._open

    def _attempt(self, group: int, replica: int) -> Wanted:
        progress = self._progress[group]
        return Wanted(
            group_id=group,
            replica=replica,
            attempt=progress.last_attempt.get(replica, -1) + 1,
            reason=progress.last_reason.get(replica, IssueReason.LOST)
            if replica in progress.last_attempt
            else IssueReason.FIRST,
            num_groups_ahead=bisect_left(self._open, group),
            protected=self._is_protected(group),
            turns_position=progress.turns_position.get(replica),
            resume_attempt=self._resume_attempt(group, replica),
        )

    def _resume_attempt(self, group: int, replica: int) -> int | None:
        """None also where what was begun is too old to end fresh."""
        progress = self._progress[group]
        oldest = progress.oldest_version.get(replica)
        if oldest is not None and self.cannot_be_fresh(group, oldest):
            return None
        return progress.resume_attempt(replica)

    def _is_protected(self, group: int) -> bool:
        return is_protected(group, self._ledger, self._freshness)

    def _facts(self, group: int) -> GroupFacts:
        """The group as the trainer would see it, had it read as far as this dispatcher."""
        progress = self._progress[group]
        undisposed = (*progress.finished.values(), *progress.endings.values())
        fresh, endings = fresh_and_ended(undisposed, self._ledger)
        return facts_of_group(
            group,
            fresh=fresh,
            endings=endings,
            ledger=self._ledger,
            groups=self._groups,
            freshness=self._freshness,
        )

    def _forget_place(self, place: Place) -> None:
        """A sample has its verdict, as one of this group or of another: here it counts no more.

        Its headers may have named another group than the record does, or any where the trainer finds none.
        """
        group = self._group_at.pop(place, None)
        progress = None if group is None else self._progress.get(group)
        if group is None or progress is None:
            return
        progress.finished.pop(place, None)
        progress.endings.pop(place, None)
        self._changed.add(group)

    def _forget(self, group: int) -> None:
        self._filtered.discard(group)
        index = bisect_left(self._open, group)
        if index < len(self._open) and self._open[index] == group:
            del self._open[index]

    def _is_open(self, group: int) -> bool:
        index = bisect_left(self._open, group)
        return index < len(self._open) and self._open[index] == group
