"""The plan of a mixed run, and what each fault cost by the raw records."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from support.builders import a_genesis, a_heartbeat, a_sample, a_task

from benchmarks.chaos.cost import FaultCost, cost_of, cost_table
from benchmarks.chaos.faults import FaultKind, Whole, pauses_seconds, plan_faults, role_at
from benchmarks.chaos.kills import Role
from benchmarks.chaos.mixed_run import Happened
from benchmarks.chaos.raw_log import Raw
from rollog.kernel.crash_points import CrashPoint
from schemas import Disposition, Status, Verdict
from schemas.codec import encode

if TYPE_CHECKING:
    from schemas import Sample
    from schemas.records import Record

targets = (*Role, *CrashPoint, Whole.UP)
killed_pid, other_pid = 41, 42


def test_a_plan_can_be_repeated_and_meets_everybody_with_every_length_of_pause() -> None:
    plan = plan_faults(5, targets, num_kills=len(targets), num_pauses=len(targets), num_doubles=2)

    assert plan == plan_faults(5, targets, num_kills=len(targets), num_pauses=len(targets), num_doubles=2)
    assert plan != plan_faults(6, targets, num_kills=len(targets), num_pauses=len(targets), num_doubles=2)
    for kind in (FaultKind.KILL, FaultKind.PAUSE):
        assert {fault.target for fault in plan if fault.kind is kind} == set(targets)
    assert {fault.target for fault in plan if fault.kind is FaultKind.DOUBLE} == {
        Role.TRAINER,
        Role.DISPATCHER,
    }
    pauses = [fault.pause_seconds for fault in plan if fault.kind is FaultKind.PAUSE]
    for least, most in pauses_seconds:
        assert any(least <= pause <= most for pause in pauses)
    assert {fault.settles for fault in plan} == {True, False}


def test_fewer_faults_than_targets_are_drawn_without_repeating_one() -> None:
    plan = plan_faults(1, targets, num_kills=4, num_pauses=3)

    assert Counter(fault.kind for fault in plan) == {FaultKind.KILL: 4, FaultKind.PAUSE: 3}
    assert len({fault.target for fault in plan if fault.kind is FaultKind.KILL}) == 4


def test_a_window_is_passed_by_one_role() -> None:
    assert role_at(CrashPoint.GRANT_SENT) is Role.DISPATCHER
    assert role_at(CrashPoint.SAMPLE_ACKNOWLEDGED) is Role.WORKER
    assert role_at(CrashPoint.COPY_BETWEEN_VERSIONS) is Role.WORKER
    assert role_at(CrashPoint.PATCHES_DECODED) is Role.WORKER
    assert role_at(CrashPoint.SWAP_HALF_DONE) is Role.WORKER
    for point in (
        CrashPoint.SHARD_HALF_WRITTEN,
        CrashPoint.COMMIT_SENT,
        CrashPoint.PRUNE_COMMITTED,
        CrashPoint.SWEEP_HALF_DONE,
    ):
        assert role_at(point) is Role.TRAINER


def raw(offset: int, appended: float, record: Record) -> Raw:
    return Raw(partition=0, offset=offset, appended=appended, value=encode(record))


def a_kill(at: float, *pids: int) -> Happened:
    return Happened(kind=FaultKind.KILL, target=Role.WORKER, at=at, pids=pids)


def costs(
    happened: list[Happened], ended: list[tuple[float, Sample, Disposition]], until: float = 100.0
) -> list[FaultCost]:
    """Of a run with these samples and dispositions; every task was ordered at second 10."""
    verdicts = tuple(
        Verdict(
            partition=0,
            offset=offset,
            sample_id=sample.sample_id,
            digest=bytes(16),
            group_id=sample.group_id,
            replica=sample.replica,
            disposition=disposition,
        )
        for offset, (_, sample, disposition) in enumerate(ended)
    )
    return cost_of(
        happened,
        tasks=[
            raw(number, 10.0, replace(a_task(), task_id=sample.task_id))
            for number, (_, sample, _) in enumerate(ended)
        ],
        samples=[raw(offset, appended, sample) for offset, (appended, sample, _) in enumerate(ended)],
        workers=[
            raw(0, 1.0, a_heartbeat("killed", pid=killed_pid)),
            raw(1, 1.0, a_heartbeat("other", pid=other_pid)),
            Raw(partition=0, offset=2, appended=2.0, value=b""),
        ],
        steps=[raw(0, 90.0, replace(a_genesis(), verdicts=verdicts))],
        until=until,
    )


def ended(task: str, status: Status, *, seconds: float = 0.0, worker: str = "killed") -> Sample:
    sample = a_sample()
    timings = replace(sample.timings, generation_seconds=seconds)
    return replace(sample, task_id=task, status=status, worker_id=worker, timings=timings)


def test_a_rollout_under_way_costs_the_time_from_its_task_to_the_death_of_its_worker() -> None:
    happened = [a_kill(13.0, killed_pid), a_kill(20.0, other_pid)]
    lost = ended("1.1", Status.LOST)

    first, second = costs(happened, [(25.0, lost, Disposition.LOST)])

    assert first.num_attempts == 1
    assert first.seconds == pytest.approx(3.0)
    assert (second.num_attempts, second.seconds) == (0, 0.0)


def test_an_attempt_that_was_taken_for_lost_and_trained_all_the_same_costs_only_its_second() -> None:
    first = ended("1.1", Status.FINISHED, seconds=5.0)
    second = ended("1.2", Status.FINISHED, seconds=4.0, worker="other")
    [cost] = costs(
        [a_kill(13.0, killed_pid)],
        [
            (15.0, ended("1.1", Status.LOST), Disposition.LOST),
            (16.0, first, Disposition.TRAINED),
            (19.0, second, Disposition.DUPLICATE),
        ],
    )

    assert (cost.num_attempts, cost.seconds) == (1, 4.0)


def test_what_is_too_old_and_what_ends_with_the_run_costs_nothing() -> None:
    cancelled = ended("1.2", Status.CANCELLED, seconds=4.0)
    [cost] = costs(
        [a_kill(13.0, killed_pid)],
        [
            (15.0, ended("1.1", Status.FINISHED, seconds=2.0), Disposition.STALE),
            (50.0, cancelled, Disposition.CANCELLED),
        ],
        until=40.0,
    )

    assert (cost.num_attempts, cost.seconds) == (0, 0.0)


def test_the_table_has_each_target_and_all_together_with_an_interval_where_there_are_enough() -> None:
    many = [
        FaultCost(fault=a_kill(1.0), num_attempts=number, seconds=float(number), seconds_to_next_version=2.0)
        for number in range(4)
    ]

    [everybody, worker] = cost_table(many)

    assert (everybody["target"], worker["target"]) == ("any", "worker")
    assert (worker["num_faults"], worker["seconds_lost_by_fault"], worker["most_seconds"]) == (4, 1.5, 3.0)
    assert 0 <= worker["interval"][0] <= 1.5 <= worker["interval"][1] <= 3
    assert worker["seconds_to_next_version"] == 2.0
    assert cost_table(many[:1])[0]["interval"] is None
