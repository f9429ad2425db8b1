"""What an audit says on a terminal."""

from __future__ import annotations

from consumers.audit.auditor import audit_run
from rollog.kernel.broker.memory import MemoryBroker
from rollog.kernel.broker.topics import RunTopics
from rollog.run.creation import create_run
from rollog.settings.settings import Settings


def test_a_run_that_never_began_is_told_in_a_line_and_not_by_checks_of_nothing() -> None:
    broker = MemoryBroker()
    settings = Settings().changed(run={"name": "first"}, weights={"uri": "memory://first"})
    create_run(broker, settings)
    report = audit_run(broker, RunTopics("rollog", "first"), None)
    assert report.is_clean
    lines = list(report.lines())
    assert lines[0] == "run first: its ledger has not begun, there is nothing to audit yet"
    assert not any(" ok " in line for line in lines)
