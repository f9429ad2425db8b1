"""Which samples are verified: those of all steps or of one, or a share drawn by a seed."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING

from rollog.kernel.errors import ConfigError
from schemas import Disposition, LedgerKind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from consumers.ledger import LedgerEntry
    from schemas import Verdict

_digest_range = 1 << 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """What is asked for.

    `step` is the version that a step made; None for all. `share` in (0, 1] is drawn from (`seed`, place of the record),
    so the same share of the same run is the same samples. `with_untrained` takes finished samples that were judged
    otherwise, too.
    """

    step: int | None = None
    share: float = 1.0
    seed: int = 0
    with_untrained: bool = False

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise ConfigError(f"--share {self.share}: give a number above 0, and 1 at most for all")

    def takes(self, verdict: Verdict) -> bool:
        """Whether a judged record is among what is asked for; whether it is finished is not known here."""
        if verdict.disposition is not Disposition.TRAINED and not self.with_untrained:
            return False
        if self.share == 1:
            return True
        name = f"{self.seed}/{verdict.partition}/{verdict.offset}"
        number = int.from_bytes(sha256(name.encode()).digest()[:8], "big")
        return number < self.share * _digest_range


@dataclass(frozen=True, slots=True, kw_only=True)
class ChosenRecords:
    """The chosen records of one ledger record, and a version below which nothing that follows names any.

    `complete_below` follows from the lags in the ledger; None after the last one. It is a hint for the order of work:
    where the ledger says too little, versions are only loaded twice.
    """

    verdicts: Sequence[Verdict]
    complete_below: int | None


def chosen_records(entries: Sequence[LedgerEntry], selection: Selection) -> list[ChosenRecords]:
    """What is to be read, by ledger record. Raises ConfigError where the asked step is not in the ledger."""
    if selection.step is not None:
        entries = [
            entry
            for entry in entries
            if entry.record.kind is LedgerKind.STEP and entry.record.version == selection.step
        ]
        if not entries:
            raise ConfigError(f"--step {selection.step}: no step of the run made that version")
    chosen: list[ChosenRecords] = []
    complete_below: int | None = None
    for entry in reversed(entries):
        verdicts = [verdict for verdict in entry.record.verdicts if selection.takes(verdict)]
        if not verdicts:
            continue
        chosen.append(ChosenRecords(verdicts=verdicts, complete_below=complete_below))
        oldest = _oldest_version(entry, verdicts)
        complete_below = oldest if complete_below is None else min(complete_below, oldest)
    return chosen[::-1]


def _oldest_version(entry: LedgerEntry, verdicts: Sequence[Verdict]) -> int:
    """By the lags, which count from the version that the step began with."""
    record = entry.record
    consumed = record.version - 1 if record.kind is LedgerKind.STEP else record.version
    return max(0, consumed - max((verdict.lag or 0 for verdict in verdicts), default=0))
