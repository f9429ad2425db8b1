"""The audit of an opened run, with what is known of it from outside of its topics."""

from __future__ import annotations

from typing import TYPE_CHECKING

from consumers.audit.auditor import audit_run
from consumers.audit.mirror import with_hint, with_mirror

if TYPE_CHECKING:
    from consumers.audit.report import AuditReport
    from rollog.run.recorded_run import RecordedRun


def audit_opened(run: RecordedRun, *, head: str | None = None, has_weights_files: bool = True) -> AuditReport:
    """Check a run on its topics and, unless that is not wanted, its weights store; `head` is one kept elsewhere."""
    report = audit_run(
        run.broker,
        run.topics,
        run.store if has_weights_files else None,
        head=head,
        ends_with=run.ledger_head,
        has_all_files=run.has_all_weights,
    )
    if run.mirror is None:
        return with_hint(report, run.broker, run.topics)
    return with_mirror(report, run.mirror, has_map=run.has_offset_map)
