"""Lanes: jobs are handed out, tried twice, and a lane that ends is noticed."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from benchmarks.harness.worker_process import Job, Outcome, carry_out
from benchmarks.harness.worker_processes import Lanes
from benchmarks.scheduling.variants import Variant
from rollog.kernel.errors import ChildFailed

if TYPE_CHECKING:
    from pathlib import Path

    from rollog.kernel.broker.memory import MemoryBroker

lane = """
import json, sys
tries = {}
for line in sys.stdin:
    job = json.loads(line)
    name, number = job["variant"]["name"], job["number"]
    tries[number] = tries.get(number, 0) + 1
    if name == "deadly":
        sys.exit(3)
    fails = name == "hopeless" or (name == "shaky" and tries[number] == 1)
    collected = {"seconds": float(number), "ideal_seconds": 1.0, "num_tasks": 4}
    answer = {"collected": None, "error": "no luck"} if fails else {"collected": collected, "error": None}
    print(json.dumps(answer), flush=True)
"""


def a_job(number: int, name: str = "sound") -> Job:
    variant = Variant(name=name, num_groups=2, group_size=2, slots_per_worker=4)
    return Job(variant=variant, seed=0, number=number, speed=100.0)


def outcomes(*jobs: Job, warm_up: Job | None = None, num_lanes: int = 2) -> dict[int, Outcome]:
    lanes = Lanes(num_lanes, [sys.executable, "-c", lane])
    return {job.number: outcome for job, outcome in lanes.outcomes(jobs, warm_up or a_job(99))}


def test_every_job_comes_back_once_with_its_outcome() -> None:
    found = outcomes(*(a_job(number) for number in range(7)))
    seconds = {number: outcome.collected and outcome.collected.seconds for number, outcome in found.items()}
    assert seconds == {number: float(number) for number in range(7)}


def test_a_job_that_fails_is_tried_once_more_and_then_answered_with_its_error() -> None:
    found = outcomes(a_job(0, "shaky"), a_job(1, "hopeless"), a_job(2))
    assert [found[number].error for number in range(3)] == [None, "no luck", None]


def test_a_lane_that_ends_by_itself_ends_the_benchmark() -> None:
    with pytest.raises(ChildFailed, match="ended by itself"):
        outcomes(a_job(0, "deadly"), a_job(1))


def test_a_lane_that_cannot_make_a_run_at_all_ends_the_benchmark_at_once() -> None:
    with pytest.raises(ChildFailed, match="no luck"):
        outcomes(a_job(0), warm_up=a_job(99, "hopeless"))


def test_a_lane_answers_a_failed_run_with_what_ended_it(memory_broker: MemoryBroker, tmp_path: Path) -> None:
    too_many = Variant(name="too many", num_groups=3000, group_size=2, slots_per_worker=4)
    outcome = carry_out(Job(variant=too_many, seed=0, number=0, speed=100.0), memory_broker, tmp_path)
    assert outcome.error is not None
    assert "3000 groups" in outcome.error


def test_a_lane_makes_the_run_of_its_job(memory_broker: MemoryBroker, tmp_path: Path) -> None:
    outcome = carry_out(a_job(0), memory_broker, tmp_path)
    assert outcome.error is None
    assert outcome.collected is not None
    assert outcome.collected.num_tasks == 4
