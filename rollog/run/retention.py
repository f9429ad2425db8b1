"""Which samples of a run may be deleted: those that neither recovery, nor a dispatcher, nor an auditor will need."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rollog.kernel.errors import ConfigError
from schemas import Disposition, LedgerKind

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from schemas import LedgerRecord, Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class PrunePlan:
    """What to delete of `samples`, and what is lost by it.

    `offsets` are the new beginning offsets per partition. Steps up to `last_step_lost` cannot be re-trained any more, 0
    for none. `num_unchecked` records in all have no bytes any more to compare with the ledger's digests.
    """

    offsets: tuple[int, ...]
    num_deleted: int
    num_unchecked: int
    last_step_lost: int


def plan_prune(
    ledger: Sequence[LedgerRecord], beginnings: Sequence[int], *, keep_steps: int, redo_from: int | None
) -> PrunePlan:
    """What may go while the newest `keep_steps` steps stay auditable and can be trained again.

    `beginnings` are the beginning offsets now. `redo_from` is the first step that recovery would redo, None where there
    is nothing to recover. Records of open groups stay, because a dispatcher counts attempts by them.

    Raises ConfigError when the ledger has not begun, or recovery needs more steps than are to be kept.
    """
    if not ledger:
        raise ConfigError("the ledger has not begun: there is nothing to delete")
    version = ledger[-1].version
    last_step_let_go = max(0, version - keep_steps)
    if redo_from is not None and redo_from <= last_step_let_go:
        raise ConfigError(
            f"recovery of this run would train steps {redo_from} to {version} again and needs their samples: keep at "
            f"least {version - redo_from + 1} steps, or prune where the trainer keeps newer complete checkpoints "
            "(--home) or after it has written one"
        )
    needed = _needed(ledger, last_step_let_go, is_open=redo_from is not None)
    offsets = _lowest(needed, ledger[-1].low_water_marks)
    offsets = tuple(max(pair) for pair in zip(offsets, beginnings, strict=True))
    return PrunePlan(
        offsets=offsets,
        num_deleted=sum(offset - beginning for offset, beginning in zip(offsets, beginnings, strict=True)),
        num_unchecked=sum(
            verdict.offset < offsets[verdict.partition] for record in ledger for verdict in record.verdicts
        ),
        last_step_lost=max(
            (
                record.version
                for record in ledger
                if any(verdict.offset < offsets[verdict.partition] for verdict in _trained(record))
            ),
            default=0,
        ),
    )


def _needed(ledger: Sequence[LedgerRecord], last_step_let_go: int, *, is_open: bool) -> Iterable[Verdict]:
    """Verdicts whose records must stay: those after the last step that is let go, and those of open groups."""
    closed = {group.group_id for record in ledger for group in record.closed_groups}
    is_kept = last_step_let_go == 0
    for record in ledger:
        for verdict in record.verdicts:
            if is_kept or (is_open and verdict.group_id >= 0 and verdict.group_id not in closed):
                yield verdict
        is_kept = is_kept or (
            record.version == last_step_let_go and record.kind in (LedgerKind.STEP, LedgerKind.REBASE)
        )


def _lowest(verdicts: Iterable[Verdict], marks: Sequence[int]) -> tuple[int, ...]:
    lowest = list(marks)
    for verdict in verdicts:
        lowest[verdict.partition] = min(lowest[verdict.partition], verdict.offset)
    return tuple(lowest)


def _trained(record: LedgerRecord) -> Iterable[Verdict]:
    return (verdict for verdict in record.verdicts if verdict.disposition is Disposition.TRAINED)
