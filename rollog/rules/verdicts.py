"""What the ledger alone decides about a sample; first match wins."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rollog.rules.freshness import is_stale
from rollog.rules.reasons import cancelled, group_closed, over_lag_bound, unknown_weights
from schemas import CancelReason, Disposition, Status

if TYPE_CHECKING:
    from rollog.rules.headers import SampleHeader
    from rollog.rules.ledger_state import LedgerState


def current_verdict(header: SampleHeader, ledger: LedgerState) -> tuple[Disposition, str] | None:
    """The disposition and its reason at the ledger's version; None while the sample is a fresh candidate."""
    ended = _verdict_on_ending(header)
    if ended is not None:
        return ended
    if ledger.closed_groups.is_trained(header.group_id, header.replica):
        return (Disposition.DUPLICATE, "")
    if header.group_id in ledger.closed_groups:
        return (Disposition.REDUNDANT, group_closed)
    return _verdict_on_freshness(header, ledger)


def _verdict_on_ending(header: SampleHeader) -> tuple[Disposition, str] | None:
    # A defect comes first: what a broken record says of its status proves nothing.
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
    # Weights first: an unknown version has no lag.
    if not all(ledger.knows_weights(segment.version, segment.weights_digest) for segment in header.segments):
        return (Disposition.STALE, unknown_weights)
    assert header.first_version is not None, "a finished sample without a segment is dead"
    if is_stale(ledger.version, header.first_version, ledger.alpha):
        return (Disposition.STALE, over_lag_bound)
    return None
