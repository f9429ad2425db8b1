"""The ledger's entry for one judged sample."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rollog.rules.reasons import other_writer
from schemas import Disposition, Verdict

if TYPE_CHECKING:
    from rollog.rules.headers import SampleHeader


def verdict_of(header: SampleHeader, disposition: Disposition, *, version: int, reason: str = "") -> Verdict:
    """The verdict on a sample judged at `version`; its lag is counted from there."""
    if header.is_by_other and disposition is Disposition.TRAINED:
        reason = other_writer
    return Verdict(
        partition=header.partition,
        offset=header.offset,
        sample_id=header.sample_id,
        digest=header.digest,
        group_id=header.group_id,
        replica=header.replica,
        disposition=disposition,
        lag=None if header.first_version is None else version - header.first_version,
        reason=reason,
        late_reward=None if header.late_reward is None else header.late_reward.reference,
    )
