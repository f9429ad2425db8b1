"""What a pass over `turns` finds for the rollouts that are taken up, within bounds of memory.

Anybody who may write to the topic can write turns of any rollout, as many and as large as the topic takes. So nothing
is decoded but what a header says is of a wanted replica, and what is held is bounded, for each of them and for all.

| a rollout | when                                                           | its turns                              |
| ---       | ---                                                            | ---                                    |
| collects  | from the beginning                                             | are held                               |
| given up  | it alone needs more than `most_replica_bytes`                  | are dropped, and it begins anew        |
| put aside | all have more than `most_bytes`, and it has most of them       | are dropped, and read again with fewer |

One that has more than that drops first what its newest chain is not made of: attempts that it was not taken over from,
and what of the others was not served again.

Example. With 256 MiB for all and 64 MiB for each, a stranger's gigabyte under the name of one replica costs that one
what it could have taken over, and the 63 others nothing. Where 64 rollouts have 5 MiB each, 13 are put aside, and the
next pass reads them.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import TYPE_CHECKING

from producers.sessions.turn_chain import Branches
from schemas import SchemaError, Turn
from schemas.codec import decode_as

if TYPE_CHECKING:
    from collections.abc import Sequence

    from producers.sessions.turn_chain import Chain
    from rollog.kernel.broker.ports import Record
    from schemas import RolloutTask

_turn_bytes = 2048
_segment_bytes = 256
"""What Python takes for a decoded turn and for each of its segments, besides the bytes."""


class _State(Enum):
    COLLECTS = auto()
    GIVEN_UP = auto()
    PUT_ASIDE = auto()


@dataclass(eq=False, slots=True)
class _Replica:
    """What is found for one task."""

    task: RolloutTask
    branches: Branches
    state: _State = _State.COLLECTS

    @property
    def num_bytes(self) -> int:
        return self.branches.num_bytes

    def drop(self, state: _State) -> None:
        """Hold nothing of it any more."""
        self.branches, self.state = _branches(self.task), state


class FoundTurns:
    """Takes in records of `turns`, and gives the chain of each task. Each task has a `resume_attempt`."""

    def __init__(self, tasks: Sequence[RolloutTask], *, most_bytes: int, most_replica_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._most_replica_bytes = most_replica_bytes
        self._replicas = [_Replica(task, _branches(task)) for task in tasks]
        self._by_headers: dict[object, list[_Replica]] = {}
        for each in self._replicas:
            names = str(each.task.group_id).encode(), str(each.task.replica).encode()
            self._by_headers.setdefault((each.task.sample_partition, *names), []).append(each)
        self.num_unreadable = 0

    @property
    def num_bytes(self) -> int:
        """About what is held now."""
        return sum(each.num_bytes for each in self._replicas)

    @property
    def given_up(self) -> list[str]:
        """Ids of the tasks of which more was found than is held of one."""
        return [each.task.task_id for each in self._replicas if each.state is _State.GIVEN_UP]

    def take(self, record: Record) -> None:
        """Take in one record; what is of no wanted replica, or no turn, is passed over."""
        headers = record.partition, record.header("group_id"), record.header("replica")
        wanted = [
            each
            for each in self._by_headers.get(headers, ())
            if each.state is _State.COLLECTS and record.offset >= (each.task.turns_position or 0)
        ]
        if not wanted:
            return
        turn = _decoded(record)
        if turn is None:
            self.num_unreadable += 1
        elif (turn.group_id, turn.replica) == (wanted[0].task.group_id, wanted[0].task.replica):
            self._add(turn, _held_bytes(turn, record), wanted)

    def chains(self) -> dict[int, Chain | None]:
        """By place of the task: what it may take over, or None. Of those put aside nothing is said."""
        return {
            place: each.branches.newest_chain()
            for place, each in enumerate(self._replicas)
            if each.state is not _State.PUT_ASIDE
        }

    def _add(self, turn: Turn, num_bytes: int, replicas: Sequence[_Replica]) -> None:
        for each in replicas:
            each.branches.add(turn, num_bytes=num_bytes)
            if each.num_bytes > self._most_replica_bytes:
                each.branches.drop_unneeded()
            if each.num_bytes > self._most_replica_bytes:
                each.drop(_State.GIVEN_UP)
        while self.num_bytes > self._most_bytes:
            max(self._replicas, key=lambda each: each.num_bytes).drop(_State.PUT_ASIDE)


def _branches(task: RolloutTask) -> Branches:
    assert task.resume_attempt is not None, "only a task that takes something over is read for"
    return Branches(earliest_attempt=task.resume_attempt, attempt=task.attempt)


def _held_bytes(turn: Turn, record: Record) -> int:
    return len(record.value or b"") + _turn_bytes + _segment_bytes * len(turn.segments)


def _decoded(record: Record) -> Turn | None:
    """The turn of a record; None where it is none: anybody may be able to write there."""
    try:
        return decode_as(Turn, record.value or b"")
    except SchemaError:
        return None
