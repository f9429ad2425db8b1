"""A whole run with real workers and a real trainer in which every sample is an object of the store."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from support.threaded_run import small_settings, whole_run

from consumers.audit.auditor import audit_run
from rollog.kernel.payloads import PayloadStore
from rollog.kernel.weights import WeightsStore
from schemas import Disposition

if TYPE_CHECKING:
    from pathlib import Path

    from rollog.kernel.broker.memory import MemoryBroker
    from rollog.kernel.broker.topics import RunTopics

pytestmark = [pytest.mark.engine, pytest.mark.slow]


def test_a_run_of_large_samples_alone_is_trained_and_audited(
    memory_broker: MemoryBroker, run_topics: RunTopics, tmp_path: Path
) -> None:
    settings = small_settings(
        tmp_path, run_topics.run, broker={"inline_sample_bytes": 0}, evaluation={"every_steps": 0}
    )
    with whole_run(memory_broker, tmp_path, settings) as run:
        run.dispatcher()
        run.trainer()
        run.worker()
        ledger = run.wait_until_closed()
    trained = [
        verdict
        for record in ledger
        for verdict in record.verdicts
        if verdict.disposition is Disposition.TRAINED
    ]
    assert len(trained) == 3 * 2 * 4
    store = WeightsStore(run.manifest.weights_uri)
    report = audit_run(run.broker, run.topics, store, settles_within_seconds=0.0)
    assert report.is_clean, "\n".join(report.lines())
    (objects,) = (check for check in report.checks if check.name == "I16")
    assert objects.num_checked >= len(trained)
    assert len(PayloadStore(store, run.topics).names()) >= len(trained)
