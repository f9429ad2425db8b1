"""Samples that no dispatcher ordered: those of writers whom the settings of the run let in, and those of nobody."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from consumers.audit.findings import Place
    from consumers.audit.judged import Judged
    from consumers.audit.ledger_index import LedgerIndex
    from schemas import Sample

_other_writer = "other_writer"
_unverified = ("outside the model's vocabulary", "the context has", "payload_missing", "payload_altered")
"""What verdicts say of dead samples whose tokens this audit does not compare with the model, and
of those whose object was not as named when they were judged: it may have come, or have been restored, since."""


@dataclass(slots=True)
class OtherWriters:
    """Counts what was trained of each writer whom `groups.other_writers` names."""

    ledger: LedgerIndex
    num_trained: Counter[str] = field(default_factory=Counter)

    def trained(self, sample: Sample, judged: Judged, place: Place) -> bool:
        """Whether a trained sample is, or is said to be, one of theirs; no task needs to have ordered it then."""
        is_let_in = sample.worker_id in self.ledger.config.other_writers
        is_said = judged.reason == _other_writer
        if not (is_let_in or is_said):
            return False
        self.num_trained[sample.worker_id] += 1
        self.ledger.checks.verdicts.expect(
            True,
            is_let_in and is_said,
            f"trained as written by {sample.worker_id}, whom groups.other_writers names",
            place=place,
            record_id=sample.sample_id,
        )
        return True


def is_of_nobody(judged: Judged) -> bool:
    """Whether the verdict counts a dead sample for no group: the log does not know where it comes from."""
    return judged.group_id == -1


def is_unverified(judged: Judged) -> bool:
    """Whether a sample was judged dead for what this audit cannot tell from the sample alone."""
    return is_of_nobody(judged) or any(said in judged.reason for said in _unverified)
