"""What a worker's metrics say of its slots."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from support.builders import a_task
from support.forked_samples import a_session

from producers.engines.simulated import SimulatedEngine
from producers.rollout.reporting import WorkerReport
from producers.rollout.session import WorkerSession
from rollog.kernel.metrics import Metrics
from schemas import DispatcherEpoch, Grant, RolloutTask, WeightVersion

capacity = 3


def a_notice(version: int) -> WeightVersion:
    return WeightVersion(version=version, sha256=f"{version:064x}", name=f"v{version}", num_bytes=1)


@dataclass
class ReportDriver:
    """A session of three slots and its report, over one clock that is driven by hand."""

    now: float = 0.0
    metrics: Metrics = field(default_factory=Metrics)

    def __post_init__(self) -> None:
        self.session = WorkerSession(
            "worker-1", capacity=capacity, load_attempts=3, reward_function="m:f", clock=lambda: self.now
        )
        self.report = WorkerReport(
            self.session,
            SimulatedEngine(),
            self.metrics,
            capacity=capacity,
            reload="keep",
            clock=lambda: self.now,
        )
        self.session.engine_ready()

    def serve(self, version: int) -> None:
        self.session.on_weights(a_notice(version))
        self.session.loaded(a_notice(version))

    def grant(self) -> None:
        self.session.on_control(DispatcherEpoch(epoch=1, dispatcher_id="d"))
        self.session.on_control(
            Grant(grant_id="1.1", epoch=1, worker_id="worker-1", partition=0, start_offset=0)
        )

    def task(self, task: RolloutTask) -> None:
        self.session.on_task(task, 0)

    def wait(self, seconds: float) -> tuple[float | None, float | None]:
        """Let time pass; returns idle seconds and free slot-seconds so far."""
        self.now += seconds
        self.report.observe()
        value = self.metrics.registry.get_sample_value
        return value("rollog_rollout_idle_seconds_total"), value("rollog_rollout_free_slot_seconds_total")


def test_a_worker_that_may_not_work_yet_is_not_idle() -> None:
    driver = ReportDriver()
    assert driver.wait(5.0) == (0.0, 0.0)
    driver.grant()
    assert driver.wait(5.0) == (0.0, 0.0)


def test_a_serving_worker_without_a_rollout_is_idle_and_every_free_slot_counts() -> None:
    driver = ReportDriver()
    driver.grant()
    driver.serve(0)
    assert driver.wait(2.0) == (2.0, 2.0 * 3)
    driver.task(a_task(0, 0))
    assert driver.wait(1.0) == (2.0, 6.0 + 2)
    driver.task(a_task(0, 1))
    driver.task(a_task(0, 2))
    assert driver.wait(4.0) == (2.0, 8.0)
    driver.session.replica_generated(a_task(0, 1).task_id)
    assert driver.wait(4.0) == (2.0, 8.0 + 4)
    driver.session.replica_ended(a_task(0, 1).task_id)
    assert driver.wait(1.0) == (2.0, 12.0 + 1)


def test_a_worker_that_reloads_is_not_idle() -> None:
    driver = ReportDriver()
    driver.grant()
    driver.serve(0)
    driver.session.on_weights(a_notice(1))
    driver.session.fetched(a_notice(1))
    assert driver.wait(3.0) == (0.0, 0.0)
    driver.session.loaded(a_notice(1))
    assert driver.wait(3.0) == (3.0, 9.0)


def test_a_task_that_holds_more_slots_than_there_are_leaves_none_free() -> None:
    driver = ReportDriver()
    driver.grant()
    driver.serve(0)
    driver.task(a_task(0, 0, num_replicas=capacity + 2))
    assert driver.wait(3.0) == (0.0, 0.0)


def test_tokens_of_a_session_are_those_of_all_its_calls_and_no_context() -> None:
    driver = ReportDriver()
    sample = replace(a_session(0, 0), wasted_tokens=3)
    assert sample.forks
    driver.report.ended(sample)
    generated = driver.metrics.registry.get_sample_value("rollog_rollout_tokens_generated_total")
    assert generated == sum(turn.end - turn.start for turn in sample.turns) + 3
