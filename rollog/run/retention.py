"""Which samples of a run may be deleted: those that neither recovery, nor a dispatcher, nor an auditor will need."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rollog.kernel.errors import ConfigError
from schemas import Disposition, LedgerKind

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from schemas import LedgerRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class PrunePlan:
    """What to delete of `samples`, and what is lost by it.

    `offsets` are the new beginning offsets per partition, `reward_offset` that of `rewards`. Steps up to
    `last_step_lost` cannot be re-trained any more, 0 for none. `num_unchecked` records in all have no bytes any more to
    compare with the ledger's digests.
    """

    offsets: tuple[int, ...]
    reward_offset: int
    num_deleted: int
    num_unchecked: int
    last_step_lost: int


def plan_prune(
    ledger: Iterable[LedgerRecord], beginnings: Sequence[int], *, keep_steps: int, redo_from: int | None
) -> PrunePlan:
    """What may go while the newest `keep_steps` steps stay auditable and can be trained again.

    The ledger is gone over once, and of each verdict five numbers are held. `beginnings` are the beginning offsets now.
    `redo_from` is the first step that recovery would redo, None where there is nothing to recover. Records of open
    groups stay, because a dispatcher counts attempts by them.

    Raises ConfigError when the ledger has not begun, or recovery needs more steps than are to be kept.
    """
    judged = _Judged.of(ledger)
    if not judged.records:
        raise ConfigError("the ledger has not begun: there is nothing to delete")
    version = judged.records[-1].version
    last_step_let_go = max(0, version - keep_steps)
    if redo_from is not None and redo_from <= last_step_let_go:
        raise ConfigError(
            f"recovery of this run would train steps {redo_from} to {version} again and needs their samples: keep at "
            f"least {version - redo_from + 1} steps, or prune where the trainer keeps newer complete checkpoints "
            "(--home) or after it has written one"
        )
    needed = list(judged.needed(last_step_let_go, is_open=redo_from is not None))
    places = ((judged.partitions[index], judged.offsets[index]) for index in needed)
    offsets = _lowest(places, judged.low_water_marks)
    used = (judged.reward_offsets[index] for index in needed)
    reward_offset = min((offset for offset in used if offset >= 0), default=judged.reward_mark)
    offsets = tuple(max(pair) for pair in zip(offsets, beginnings, strict=True))
    deleted = [index for index, (place, offset) in enumerate(judged.places()) if offset < offsets[place]]
    return PrunePlan(
        offsets=offsets,
        reward_offset=min(reward_offset, judged.reward_mark),
        num_deleted=sum(offset - beginning for offset, beginning in zip(offsets, beginnings, strict=True)),
        num_unchecked=len(deleted),
        last_step_lost=max(
            (judged.record_of(index).version for index in deleted if judged.are_trained[index]), default=0
        ),
    )


@dataclass(frozen=True, slots=True)
class _Record:
    """One ledger record: the version after it, and whether it made that one."""

    version: int
    makes_version: bool


@dataclass(slots=True)
class _Judged:
    """Every verdict of a ledger as five numbers and a flag, in order."""

    partitions: array[int] = field(default_factory=lambda: array("i"))
    offsets: array[int] = field(default_factory=lambda: array("q"))
    reward_offsets: array[int] = field(default_factory=lambda: array("q"))
    groups: array[int] = field(default_factory=lambda: array("q"))
    record_numbers: array[int] = field(default_factory=lambda: array("q"))
    are_trained: bytearray = field(default_factory=bytearray)
    records: list[_Record] = field(default_factory=list)
    closed: set[int] = field(default_factory=set)
    low_water_marks: tuple[int, ...] = ()
    reward_mark: int = 0

    @classmethod
    def of(cls, ledger: Iterable[LedgerRecord]) -> _Judged:
        """Those of a ledger."""
        judged = cls()
        for record in ledger:
            judged.add(record)
        return judged

    def add(self, record: LedgerRecord) -> None:
        """Those of one more record."""
        for verdict in record.verdicts:
            self.partitions.append(verdict.partition)
            self.offsets.append(verdict.offset)
            self.reward_offsets.append(-1 if verdict.late_reward is None else verdict.late_reward.offset)
            self.groups.append(verdict.group_id)
            self.record_numbers.append(len(self.records))
            self.are_trained.append(verdict.disposition is Disposition.TRAINED)
        self.closed.update(group.group_id for group in record.closed_groups)
        self.low_water_marks = record.low_water_marks
        self.reward_mark = record.reward_mark
        self.records.append(_Record(record.version, record.kind in (LedgerKind.STEP, LedgerKind.REBASE)))

    def places(self) -> Iterator[tuple[int, int]]:
        """Partition and offset of each."""
        return zip(self.partitions, self.offsets, strict=True)

    def record_of(self, index: int) -> _Record:
        """The record that a verdict stands in."""
        return self.records[self.record_numbers[index]]

    def needed(self, last_step_let_go: int, *, is_open: bool) -> Iterator[int]:
        """Verdicts on records that must stay, by index: those after the last step let go, those of open groups."""
        first_kept = self._first_kept(last_step_let_go)
        for index, (group, number) in enumerate(zip(self.groups, self.record_numbers, strict=True)):
            if number >= first_kept or (is_open and group >= 0 and group not in self.closed):
                yield index

    def _first_kept(self, last_step_let_go: int) -> int:
        """Number of the record after that step; of the first where none is let go."""
        if last_step_let_go == 0:
            return 0
        made = (
            number
            for number, record in enumerate(self.records)
            if record.version == last_step_let_go and record.makes_version
        )
        return next(made, len(self.records)) + 1


def _lowest(places: Iterable[tuple[int, int]], marks: Sequence[int]) -> tuple[int, ...]:
    lowest = list(marks)
    for partition, offset in places:
        lowest[partition] = min(lowest[partition], offset)
    return tuple(lowest)
