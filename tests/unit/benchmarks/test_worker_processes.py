"""Worker processes: jobs are handed out, tried twice, and a process that ends is noticed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import closing
from typing import TYPE_CHECKING

import pytest
from support.waiting import wait_until
from support.worker_process_jobs import set_up

from benchmarks.harness.variant import Job, Variant
from benchmarks.harness.worker_processes import Outcome, attempt, outcomes, told_results
from benchmarks.scheduling.run_measurement import measure_run
from rollog.kernel.errors import ChildFailed
from rollog.kernel.processes import exists

if TYPE_CHECKING:
    from pathlib import Path

    from rollog.kernel.broker.memory import MemoryBroker


def a_job(number: int, name: str = "sound", *, num_groups: int = 2) -> Job:
    variant = Variant(name=name, num_groups=num_groups, group_size=2, slots_per_worker=4)
    return Job(variant=variant, seed=0, number=number, speed=100.0)


def found_outcomes(*jobs: Job, warm_up: Job | None = None) -> dict[int, Outcome[tuple[int, int]]]:
    found = outcomes(jobs, warm_up or a_job(99), num_processes=2, set_up=set_up)
    return {job.number: outcome for job, outcome in found}


def test_every_job_comes_back_once_with_its_outcome_and_a_failing_one_is_tried_once_more() -> None:
    jobs = [a_job(number) for number in range(5)]
    found = found_outcomes(*jobs, a_job(5, "shaky"), a_job(6, "hopeless"))
    results = {number: outcome.result for number, outcome in found.items() if outcome.result is not None}
    assert {number: result[0] for number, result in results.items()} == {
        number: number for number in range(6)
    }
    assert found[6] == Outcome(error="ValueError: no luck")
    assert os.getpid() not in {pid for _, pid in results.values()}


def test_results_are_told_as_they_come_and_a_job_that_failed_is_told_and_left_out() -> None:
    ended: list[tuple[Job, Outcome[int]]] = [
        (a_job(1), Outcome(result=7)),
        (a_job(0), Outcome(error="ValueError: no luck")),
    ]
    told: list[str] = []
    found = told_results(
        iter(ended),
        2,
        draw="workload",
        text=lambda variant, result: f"{variant.num_groups} groups in {result} s",
        on_progress=told.append,
    )
    assert [(job.number, result) for job, result in found] == [(1, 7)]
    assert told == [
        "1/2 sound workload 1: 2 groups in 7 s",
        "2/2 sound workload 0: FAILED twice, its workload is left out: ValueError: no luck",
    ]


def test_a_process_that_ends_by_itself_ends_the_benchmark() -> None:
    with pytest.raises(ChildFailed, match="ended by itself"):
        found_outcomes(a_job(0, "deadly"), a_job(1))


def test_a_process_that_cannot_make_a_run_at_all_ends_the_benchmark_at_once() -> None:
    with pytest.raises(ChildFailed, match="cannot make a run: ValueError: no luck"):
        found_outcomes(a_job(0), warm_up=a_job(99, "hopeless"))


def test_processes_end_when_nobody_wants_their_outcomes_any_more() -> None:
    found = outcomes([a_job(number) for number in range(4)], a_job(99), num_processes=2, set_up=set_up)
    with closing(found):
        _, first = next(found)
    assert first.result is not None
    pid = first.result[1]
    wait_until(lambda: not exists(pid))


def test_processes_end_with_their_parent_even_when_it_is_killed() -> None:
    command = [sys.executable, "-m", "support.orphaned_worker_processes"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert exists(pid)
        parent.send_signal(signal.SIGKILL)
        wait_until(lambda: not exists(pid))


def test_a_run_that_fails_is_answered_with_what_ended_it(memory_broker: MemoryBroker, tmp_path: Path) -> None:
    outcome = attempt(lambda job: measure_run(job, memory_broker, tmp_path), a_job(0, num_groups=3000))
    assert outcome.error is not None
    assert "3000 groups" in outcome.error


def test_a_job_is_made_a_run(memory_broker: MemoryBroker, tmp_path: Path) -> None:
    outcome = attempt(lambda job: measure_run(job, memory_broker, tmp_path), a_job(0))
    assert outcome.error is None
    assert outcome.result is not None
    assert outcome.result.num_tasks == 4
