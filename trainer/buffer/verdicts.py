"""The disposition of one sample, first match wins."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rollog.rules.freshness import is_stale
from rollog.rules.reasons import cancelled, group_closed, over_lag_bound, unknown_weights
from schemas import CancelReason, Disposition, Status, Verdict

if TYPE_CHECKING:
    from rollog.rules.headers import SampleHeader
    from rollog.rules.ledger_state import LedgerState


def standing_verdict(header: SampleHeader, ledger: LedgerState) -> tuple[Disposition, str] | None:
    """What the ledger alone decides about a sample, and why; None while it is a fresh candidate."""
    ended = _verdict_on_ending(header)
    if ended is not None:
        return ended
    if header.replica in ledger.trained.get(header.group_id, ()):
        return (Disposition.DUPLICATE, "")
    if header.group_id in ledger.closed_groups:
        return (Disposition.REDUNDANT, group_closed)
    return _verdict_on_freshness(header, ledger)


def verdict_of(header: SampleHeader, disposition: Disposition, *, version: int, reason: str = "") -> Verdict:
    """The ledger's entry for a sample judged at `version`."""
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
    )


def _verdict_on_ending(header: SampleHeader) -> tuple[Disposition, str] | None:
    if header.defect is not None:
        return (Disposition.DEAD, header.defect)
    match header.status:
        case Status.FAILED:
            return (Disposition.FAILED, "")
        case Status.LOST:
            return (Disposition.LOST, "")
        case Status.CANCELLED | Status.EXPIRED:
            if header.cancel_reason == CancelReason.STALE:
                return (Disposition.STALE, cancelled)
            return (Disposition.CANCELLED, header.cancel_reason or "")
    return None


def _verdict_on_freshness(header: SampleHeader, ledger: LedgerState) -> tuple[Disposition, str] | None:
    if not all(ledger.knows_weights(segment.version, segment.weights_digest) for segment in header.segments):
        return (Disposition.STALE, unknown_weights)
    assert header.first_version is not None, "a finished sample without a segment is dead"
    if is_stale(ledger.version, header.first_version, ledger.alpha):
        return (Disposition.STALE, over_lag_bound)
    return None
