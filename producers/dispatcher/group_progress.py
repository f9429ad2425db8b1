"""What the dispatcher knows of one open group: which attempts run, ended, or wait for a verdict. Pure."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

from schemas import CancelReason, Disposition, IssueReason, Status

if TYPE_CHECKING:
    from rollog.rules.headers import SampleHeader

Place = tuple[int, int]

_by_dispatcher = frozenset(reason.value for reason in CancelReason)

reasons_by_disposition = {
    Disposition.STALE: IssueReason.STALE,
    Disposition.DEAD: IssueReason.DEAD,
    Disposition.UNREWARDED: IssueReason.UNREWARDED,
    Disposition.FAILED: IssueReason.FAILED,
    Disposition.LOST: IssueReason.LOST,
    Disposition.CANCELLED: IssueReason.CANCELLED,
}


@dataclass(slots=True)
class GroupProgress:
    """One open group: which attempts run, which finished samples wait for the ledger's verdict.

    By replica, for taking a rollout up again: `turns_position` is where its turns begin, `resume_floor` the earliest
    attempt that may be taken over, `oldest_version` the oldest one that running attempts since then began under.
    """

    live: defaultdict[int, set[str]] = field(default_factory=lambda: defaultdict(set))
    finished: dict[Place, SampleHeader] = field(default_factory=dict)
    endings: dict[Place, SampleHeader] = field(default_factory=dict)
    last_attempt: dict[int, int] = field(default_factory=dict)
    last_reason: dict[int, IssueReason] = field(default_factory=dict)
    turns_position: dict[int, int] = field(default_factory=dict)
    resume_floor: dict[int, int] = field(default_factory=dict)
    oldest_version: dict[int, int] = field(default_factory=dict)

    def ended(self, header: SampleHeader) -> None:
        """Note how an attempt ended: unless its worker alone is the reason, nothing before it is taken up again."""
        if header.defect is None and says_nothing_of_rollout(header):
            return
        floor = self.resume_floor.get(header.replica, 0)
        if header.attempt >= floor:
            self.resume_floor[header.replica] = header.attempt + 1
            self.oldest_version.pop(header.replica, None)

    def resume_attempt(self, replica: int) -> int | None:
        """The earliest attempt that the next one may take over; None where there is none."""
        floor = self.resume_floor.get(replica, 0)
        return floor if floor <= self.last_attempt.get(replica, -1) else None

    def live_replicas(self) -> set[int]:
        """Replicas with a task under way."""
        return {replica for replica, tasks in self.live.items() if tasks}

    def finished_replicas(self) -> set[int]:
        """Replicas with a finished sample that the ledger has not judged."""
        return {header.replica for header in self.finished.values()}

    def to_plain(self) -> dict[str, Any]:
        """What tasks and samples say of it that may not be read again, as JSON has it.

        That is neither what runs, for open tasks say that, nor the samples without a verdict, which are read again.
        """
        return {
            "last_attempt": list(self.last_attempt.items()),
            "last_reason": [(replica, reason.value) for replica, reason in self.last_reason.items()],
            "turns_position": list(self.turns_position.items()),
            "resume_floor": list(self.resume_floor.items()),
            "oldest_version": list(self.oldest_version.items()),
        }

    @classmethod
    def from_plain(cls, plain: dict[str, Any]) -> Self:
        """What `to_plain` gave. Raises ValueError, TypeError or KeyError for anything else."""
        return cls(
            last_attempt={int(replica): int(attempt) for replica, attempt in plain["last_attempt"]},
            last_reason={int(replica): IssueReason(reason) for replica, reason in plain["last_reason"]},
            turns_position=_numbers(plain["turns_position"]),
            resume_floor=_numbers(plain["resume_floor"]),
            oldest_version=_numbers(plain["oldest_version"]),
        )


def _numbers(pairs: list[list[int]]) -> dict[int, int]:
    return {int(replica): int(number) for replica, number in pairs}


def says_nothing_of_rollout(header: SampleHeader) -> bool:
    """Whether an attempt ended because its worker did: it died, lost its grant, or left."""
    match header.status:
        case Status.LOST | Status.EXPIRED:
            return True
        case Status.CANCELLED:
            return header.cancel_reason not in _by_dispatcher
        case _:
            return False


def reason_of(header: SampleHeader) -> IssueReason:
    """Why its replica is issued again after a sample that is no candidate."""
    if header.defect is not None:
        return IssueReason.DEAD
    match header.status:
        case Status.FAILED:
            return IssueReason.FAILED
        case Status.LOST:
            return IssueReason.LOST
        case _ if header.cancel_reason == CancelReason.STALE:
            return IssueReason.STALE
        case _:
            return IssueReason.CANCELLED
