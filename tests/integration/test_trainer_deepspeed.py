"""The trainer's role as a thread, DeepSpeed inside, on both brokers."""

from __future__ import annotations

import threading
from functools import partial
from typing import TYPE_CHECKING

import pytest
from support.small_training import FakeRun, a_group, dispositions, make_model, notices, trainer_settings
from support.waiting import wait_until

from rollog.kernel.errors import RollogError
from rollog.kernel.metrics import Metrics
from rollog.kernel.weights import WeightsStore
from schemas import Disposition, Genesis, Step
from trainer.role import run_trainer

if TYPE_CHECKING:
    from pathlib import Path

    from rollog.kernel.broker.ports import Broker
    from rollog.kernel.broker.topics import RunTopics

pytestmark = pytest.mark.engine


def test_deepspeed_trains_on_either_broker(broker: Broker, run_topics: RunTopics, tmp_path: Path) -> None:
    run = FakeRun(broker, run_topics)
    run.create_topics()
    settings = trainer_settings(tmp_path, run_topics, make_model(tmp_path / "model"))
    failures: list[RollogError] = []

    def train() -> None:
        try:
            run_trainer(settings, broker, Metrics(), threading.Event())
        except RollogError as error:
            failures.append(error)

    def published(version: int) -> str | None:
        assert not failures
        bodies = {record.version: record.body for record in run.ledger() if record.body is not None}
        body = bodies.get(version)
        return body.weights_sha256 if isinstance(body, Genesis | Step) else None

    thread = threading.Thread(target=train, name="trainer")
    thread.start()
    for version in range(3):
        sha256 = wait_until(partial(published, version), message=f"version {version}") or ""
        for group in (2 * version, 2 * version + 1):
            run.send(*a_group(group, weights_sha256=sha256, version=version))
    run.stop()
    thread.join(30)
    assert not failures
    assert set(dispositions(run).values()) == {Disposition.TRAINED}
    newest = notices(broker, run_topics)[-1]
    assert newest.version == 3
    WeightsStore(settings.weights_uri).check(newest)
