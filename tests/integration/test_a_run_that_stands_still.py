"""Runs that stand still: dispatcher log, trainer log and whoever follows the topics name what is waited for.

The real dispatcher, worker sessions and trainer, in one thread and simulated time. Their heartbeat threads do not run
here: what these would write is written after each round.
"""

from __future__ import annotations

import io
import logging
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from support.simulated_plan import Plan
from support.simulated_run import SimulatedRun
from support.small_training import FakeRun, a_group, a_rollout, trainer_settings

from consumers.progress import RunProgress
from rollog.kernel.logs import configure_logging
from rollog.kernel.metrics import Metrics
from rollog.settings.groups import FreshnessConfig
from schemas.codec import encode
from trainer.engines.simulated import SimulatedTrainingEngine
from trainer.startup import start_trainer

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from rollog.kernel.broker.memory import MemoryBroker
    from rollog.kernel.broker.topics import RunTopics

round_seconds = 0.5


@pytest.fixture
def logged() -> Iterator[io.StringIO]:
    logger = logging.getLogger("rollog")
    before = (list(logger.handlers), logger.level, logger.propagate)
    stream = io.StringIO()
    configure_logging({}, stream=stream)
    yield stream
    logger.handlers[:], logger.level, logger.propagate = before


def warnings_of(logged: io.StringIO, role: str) -> list[str]:
    head = f"WARNING {role}: the run stands still"
    return [line for line in logged.getvalue().splitlines() if head in line]


class Still:
    """A simulated run with somebody who follows its topics."""

    def __init__(self, run: SimulatedRun, progress: RunProgress) -> None:
        self.run = run
        self._progress = progress

    def shown(self) -> str:
        return self._progress.poll().standing_still

    def speak(self) -> None:
        for role in (self.run.dispatcher, self.run.trainer):
            if role is not None:
                status = role.voice.status
                key = status.role.encode()
                self.run.hand.send(self.run.topics.workers, 0, encode(status), key=key)
        self._progress.poll()

    def work(self, rounds: int) -> None:
        for _ in range(rounds):
            self.run.calm_round()
            self.speak()

    def stand(self, seconds: float, *, loads: bool | None = None) -> None:
        """Time goes on, and no rollout ends; `loads` says how loads end, if they do."""
        for _ in range(int(seconds / round_seconds)):
            self.run.now += round_seconds
            for worker in self.run.workers:
                worker.read()
                if loads is not None:
                    worker.load(succeeds=loads)
                worker.beat()
            self.run.turn_dispatcher()
            self.run.turn_trainer()
            self.speak()


@contextmanager
def a_run() -> Iterator[Still]:
    with (
        SimulatedRun(Plan(num_steps=100)) as run,
        RunProgress(run.broker, run.topics, clock=lambda: run.now) as progress,
    ):
        yield Still(run, progress)


def test_a_run_without_trainer_says_so_to_all_who_listen(logged: io.StringIO) -> None:
    with a_run() as still:
        still.work(40)
        still.run.kill_trainer()
        still.stand(20.0)
        assert still.shown().startswith("no trainer since 20 s; ")
    assert warnings_of(logged, "dispatcher")
    assert "no trainer since" in warnings_of(logged, "dispatcher")[0]


def test_a_hung_worker_is_named_with_its_groups(logged: io.StringIO) -> None:
    with a_run() as still:
        still.work(40)
        (worker,) = still.run.workers
        still.stand(30.0)
        assert f"worker {worker.worker_id} has 3 task(s) of group(s)" in still.shown()
        assert "no step for 30 s (usual" in still.shown()
        assert still.run.trainer is not None
        assert "of 2 groups are complete; group " in still.run.trainer.voice.status.waiting_for
    assert f"worker {worker.worker_id} has 3 task(s)" in warnings_of(logged, "dispatcher")[0]
    assert " lacks " in warnings_of(logged, "trainer")[0]


def test_an_engine_that_cannot_load_is_named_with_its_error(logged: io.StringIO) -> None:
    with a_run() as still:
        still.stand(70.0, loads=False)
        (worker,) = still.run.workers
        assert (
            f"worker {worker.worker_id} cannot load weights: version 0 could not be loaded: the file has"
            in still.shown()
        )
    assert "the file has other bytes" in warnings_of(logged, "dispatcher")[0]


def test_a_run_that_goes_on_says_nothing_and_one_that_went_on_is_told(logged: io.StringIO) -> None:
    with a_run() as still:
        still.work(60)
        assert "stands still" not in logged.getvalue()
        still.stand(30.0)
        still.work(10)
        assert still.shown() == ""
    assert {"INFO dispatcher: the run goes on", "INFO trainer: the run goes on"} <= {
        line.split(" ", 1)[1].split(" version")[0] for line in logged.getvalue().splitlines()
    }


def test_a_protected_group_that_holds_a_batch_up_is_named(
    logged: io.StringIO, memory_broker: MemoryBroker, run_topics: RunTopics, tmp_path: Path
) -> None:
    now = [0.0]
    settings = trainer_settings(tmp_path, run_topics, "simulated")
    settings = replace(settings, freshness=FreshnessConfig(alpha=0.0, patience_seconds=100.0))
    run = FakeRun(memory_broker, run_topics)
    run.create_topics()
    with start_trainer(
        settings, run.broker, Metrics(), SimulatedTrainingEngine(), clock=lambda: now[0]
    ) as trainer:

        def turn(seconds: int) -> None:
            for _ in range(seconds):
                now[0] += 1.0
                trainer.run_once()

        first = trainer.ledger.weights[0]
        run.send(a_rollout(0, 0, weights_sha256=first))
        run.send(*a_group(1, weights_sha256=first), *a_group(2, weights_sha256=first))
        turn(5)
        assert (trainer.ledger.version, len(trainer.ledger.stale_versions[0])) == (1, 1)
        second = trainer.ledger.weights[1]
        run.issue(a_rollout(0, 0, weights_sha256=second, version=1, attempt=1))
        for group in (3, 4):
            run.send(*a_group(group, weights_sha256=second, version=1))
        turn(70)
        status = trainer.voice.status
        assert status.waits_on == "trainer"
        assert "protected group(s) 0 (lacks 2 of 2)" in status.waiting_for
        assert "freshness.patience_seconds" in status.waiting_for
    assert "protected group(s) 0" in warnings_of(logged, "trainer")[0]
