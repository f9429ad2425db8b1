"""What the accelerator experiment reads from the log of a whole run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.accelerator.measure import figures_of_run
from benchmarks.harness.simulated_run import SimulatedRun
from benchmarks.weights.large_runs import a_job, longest_seconds_of_a_step
from rollog.kernel.broker.memory import MemoryBroker
from schemas import RoleStatus, RunRole
from schemas.codec import encode
from schemas.headers import headers_of

if TYPE_CHECKING:
    from pathlib import Path


def test_time_and_tokens_of_a_run_whose_roles_say_how_they_are(tmp_path: Path) -> None:
    broker = MemoryBroker()
    run = SimulatedRun(a_job("accelerator", step_seconds=0.3, num_steps=5, seed=0), broker, tmp_path / "run")
    run.create()
    with run.roles():
        run.wait_until_closed(5 * longest_seconds_of_a_step)
    status = RoleStatus(role=RunRole.TRAINER, role_id="trainer")
    with broker.producer(client_id="test") as producer:
        producer.send(run.topics.workers, 0, encode(status), key=b"trainer", headers=headers_of(status))
        producer.flush(10.0)
    found = {
        figure.name.removeprefix("one."): figure.value for figure in figures_of_run(broker, run.topics, "one")
    }
    assert found["step"] >= 0.3
    assert found["generated"] > 0 < found["trained"]
    assert 0 < found["training_share"] <= 1
    assert 0 <= found["neither_share"] <= 1
    assert found["served_after_median"] > 0
