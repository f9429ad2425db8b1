"""A whole run with real workers and a real trainer in which every sample is an object of the store."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from support.threaded_run import small_settings, verdict_counts, whole_run

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
        ledger = run.to_its_end()
    num_trained = verdict_counts(ledger)[Disposition.TRAINED]
    assert num_trained == 3 * 2 * 4
    report = run.audited(settles_within_seconds=0.0)
    (objects,) = (check for check in report.checks if check.name == "I16")
    assert objects.num_checked >= num_trained
    assert len(PayloadStore(WeightsStore(run.manifest.weights_uri), run.topics).names()) >= num_trained
