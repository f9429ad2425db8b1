"""Credits, leases, grants and reconciliation, with the clock driven by hand."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from support.builders import a_heartbeat, a_task

from producers.dispatcher.credits import (
    Candidate,
    CreditLedger,
    FreeSlots,
    OpenTask,
    full_of_group,
    next_in_turn,
)
from producers.dispatcher.workers import WorkerRegistry, missing_tasks
from schemas import Grant, WorkerState


@dataclass
class Acknowledged:
    at: int

    def done(self) -> bool:
        return True

    def offset(self, timeout_seconds: float) -> int:
        assert timeout_seconds >= 0
        return self.at


def a_registry() -> WorkerRegistry:
    return WorkerRegistry(lease_seconds=3.0, num_partitions=2, prefetch_tasks=1, max_scoring=4)


def a_grant(worker_id: str = "worker-1", partition: int = 0, epoch: int = 1) -> Grant:
    return Grant(
        grant_id=f"1.{partition}", epoch=epoch, worker_id=worker_id, partition=partition, start_offset=0
    )


def open_task(task_id: str = "1.1", worker_id: str = "worker-1", replicas: int = 1) -> OpenTask:
    return OpenTask(
        task=a_task(task_id=task_id, num_replicas=replicas),
        worker_id=worker_id,
        remaining=set(range(replicas)),
        delivery=Acknowledged(at=5),
    )


def test_a_task_takes_a_slot_per_replica_until_all_have_their_samples() -> None:
    ledger = CreditLedger()
    ledger.issue(open_task(replicas=2))
    assert ledger.num_used("worker-1") == 2
    assert ledger.end("1.1", 0) is not None
    assert ledger.end("1.1", 0) is None
    assert ledger.num_used("worker-1") == 2
    assert ledger.end("1.1", 1) is not None
    assert (ledger.num_used("worker-1"), len(ledger)) == (0, 0)


def test_losing_a_task_frees_all_its_slots_once() -> None:
    ledger = CreditLedger()
    ledger.issue(open_task(replicas=2))
    ledger.end("1.1", 0)
    assert ledger.lose("1.1") is not None
    assert ledger.lose("1.1") is None
    assert (ledger.num_used("worker-1"), len(ledger)) == (0, 0)


def test_static_scheduling_takes_workers_in_turn_and_goes_on_where_one_is_gone() -> None:
    candidates = [Candidate(worker_id=name, num_slots=-3, served_version=0) for name in "cab"]
    turns = [next_in_turn(candidates, last) for last in (None, "a", "b", "c", "bb")]
    assert turns == ["a", "b", "c", "a", "c"]
    assert next_in_turn([], "a") is None


def test_ending_an_unknown_task_changes_nothing() -> None:
    ledger = CreditLedger()
    assert ledger.end("9.9", 0) is None
    assert ledger.lose("9.9") is None


def test_the_worker_with_most_free_slots_that_serves_the_version_is_chosen() -> None:
    candidates = [
        Candidate(worker_id="a", num_slots=1, served_version=3),
        Candidate(worker_id="b", num_slots=5, served_version=2),
        Candidate(worker_id="c", num_slots=2, served_version=3),
    ]
    free = FreeSlots(candidates)
    assert free.choose(num_slots=1, min_version=3) == "c"
    assert free.choose(num_slots=1, min_version=0) == "b"
    assert free.choose(num_slots=1, min_version=0, excluded={"b"}) == "c"
    assert free.choose(num_slots=3, min_version=3) is None


def test_slots_that_are_taken_are_no_longer_free() -> None:
    free = FreeSlots(
        [
            Candidate(worker_id="a", num_slots=2, served_version=0),
            Candidate(worker_id="b", num_slots=3, served_version=0),
            Candidate(worker_id="full", num_slots=0, served_version=0),
        ]
    )
    chosen = []
    while (worker_id := free.choose(num_slots=1, min_version=0)) is not None:
        free.take(worker_id, 1)
        chosen.append(worker_id)
    assert sorted(chosen) == ["a", "a", "b", "b", "b"]
    assert chosen[:2] == ["b", "b"]


def test_a_task_larger_than_any_worker_goes_to_an_idle_one_and_fills_it() -> None:
    free = FreeSlots([Candidate(worker_id="a", num_slots=2, served_version=0, is_idle=True)])
    assert free.choose(num_slots=5, min_version=0) == "a"
    free.take("a", 5)
    assert free.choose(num_slots=1, min_version=0) is None


def test_no_worker_holds_more_replicas_of_a_group_than_are_redundant_if_the_others_can_hold_it() -> None:
    held = {"a": 2, "b": 1}
    assert full_of_group(held, num_workers=4, num_replicas=6, num_redundant=2) == {"a"}
    assert full_of_group(held, num_workers=3, num_replicas=6, num_redundant=2) == frozenset()
    assert full_of_group(held, num_workers=4, num_replicas=6, num_redundant=0) == frozenset()


def test_a_group_counts_its_open_tasks_by_worker_until_they_end() -> None:
    ledger = CreditLedger()
    ledger.issue(open_task("1.1"))
    ledger.issue(open_task("1.2"))
    (found,) = {each.task.group_id for each in ledger.all()}
    assert ledger.num_of_group(found) == {"worker-1": 2}
    ledger.lose("1.1")
    assert ledger.num_of_group(found) == {"worker-1": 1}
    ledger.lose("1.2")
    assert ledger.num_of_group(found) == {}


def test_candidates_hold_a_grant_serve_a_version_and_have_free_slots() -> None:
    registry, ledger = a_registry(), CreditLedger()
    registry.on_heartbeat(a_heartbeat(capacity=1), now=0.0)
    assert registry.candidates(ledger) == []
    registry.granted(a_grant(), now=0.0)
    assert [found.num_slots for found in registry.candidates(ledger)] == [2]
    ledger.issue(open_task("1.1"))
    ledger.issue(open_task("1.2"))
    assert registry.candidates(ledger) == []
    registry.on_heartbeat(a_heartbeat(capacity=9, state=WorkerState.LOAD_FAILED), now=0.0)
    assert registry.candidates(ledger) == []


def slots_of_a_worker(registry: WorkerRegistry, ledger: CreditLedger, **heartbeat: Any) -> int:
    registry.on_heartbeat(a_heartbeat(**heartbeat), now=0.0)
    (found,) = registry.able(ledger)
    return found.num_slots


def test_a_worker_may_hold_a_task_more_for_each_rollout_that_it_is_scoring() -> None:
    registry, ledger = a_registry(), CreditLedger()
    registry.granted(a_grant(), now=0.0)
    for number in range(3):
        ledger.issue(open_task(f"1.{number}"))
    assert slots_of_a_worker(registry, ledger, capacity=2) == 0
    assert slots_of_a_worker(registry, ledger, capacity=2, num_scoring=2) == 2


@pytest.mark.parametrize("claim", [5, 10**9, 1 << 62])
def test_a_claim_to_score_more_than_the_setting_or_than_was_issued_brings_no_more_tasks(claim: int) -> None:
    registry, ledger = a_registry(), CreditLedger()
    registry.granted(a_grant(), now=0.0)
    assert slots_of_a_worker(registry, ledger, capacity=2, num_scoring=claim) == 3
    ledger.issue(open_task("1.0"))
    assert slots_of_a_worker(registry, ledger, capacity=2, num_scoring=claim) == 3
    num_issued = 1
    while slots_of_a_worker(registry, ledger, capacity=2, num_scoring=claim) > 0:
        ledger.issue(open_task(f"1.{num_issued}"))
        num_issued += 1
    assert num_issued == 2 + 1 + 4  # capacity, prefetch_tasks, reward.max_in_flight


def test_a_negative_claim_takes_nothing() -> None:
    registry, ledger = a_registry(), CreditLedger()
    registry.granted(a_grant(), now=0.0)
    assert slots_of_a_worker(registry, ledger, capacity=2, num_scoring=-7) == 3


def test_a_worker_whose_rollouts_are_all_being_scored_is_idle() -> None:
    registry, ledger = a_registry(), CreditLedger()
    registry.granted(a_grant(), now=0.0)
    ledger.issue(open_task("1.0", replicas=2))
    for num_scoring, is_idle in ((0, False), (2, True)):
        registry.on_heartbeat(a_heartbeat(num_scoring=num_scoring), now=0.0)
        (found,) = registry.able(ledger)
        assert found.is_idle is is_idle


def test_a_lease_without_a_heartbeat_expires_and_a_heartbeat_revives_it() -> None:
    registry = a_registry()
    registry.on_heartbeat(a_heartbeat(), now=0.0)
    assert registry.with_expired_lease(3.0) == []
    (expired,) = registry.with_expired_lease(3.1)
    expired.is_expired = True
    assert registry.without_grant() == []
    registry.on_heartbeat(a_heartbeat(), now=4.0)
    assert [worker.worker_id for worker in registry.without_grant()] == ["worker-1"]


def test_leases_start_again_when_contact_with_the_broker_was_lost() -> None:
    registry = a_registry()
    registry.on_heartbeat(a_heartbeat(), now=0.0)
    registry.restart_leases(10.0)
    assert registry.with_expired_lease(12.0) == []


def test_each_worker_gets_a_partition_of_its_own_until_none_is_left() -> None:
    registry = a_registry()
    assert registry.free_partitions() == [0, 1]
    registry.granted(a_grant("a", 0), now=0.0)
    assert registry.free_partitions() == [1]
    registry.granted(a_grant("b", 1), now=0.0)
    assert registry.free_partitions() == []
    registry.revoked("1.0")
    assert registry.free_partitions() == [0]


def test_a_leaving_worker_gets_no_grant() -> None:
    registry = a_registry()
    registry.on_heartbeat(a_heartbeat(state=WorkerState.LEAVING), now=0.0)
    assert registry.without_grant() == []


def test_a_task_read_but_named_in_no_heartbeat_is_missing_after_the_limit_and_the_grace() -> None:
    registry, ledger = a_registry(), CreditLedger()
    registry.granted(a_grant(), now=0.0)
    ledger.issue(open_task())

    def beat(now: float, **changes: Any) -> list[str]:
        registry.on_heartbeat(a_heartbeat(grant_id="1.0", **changes), now=now)
        return missing_tasks(registry.workers["worker-1"], ledger, limit=3, now=now, grace=2.0)

    assert beat(0.0, tasks_position=5) == []
    assert beat(1.0, tasks_position=6) == []
    assert beat(2.0, tasks_position=6, open_tasks=("1.1",)) == []
    assert [beat(now, tasks_position=6) for now in (3.0, 3.1, 3.2)] == [[], [], []]
    assert beat(5.0, tasks_position=6) == ["1.1"]


def test_heartbeats_under_another_grant_say_nothing_about_tasks() -> None:
    registry, ledger = a_registry(), CreditLedger()
    registry.granted(a_grant(), now=0.0)
    ledger.issue(open_task())
    registry.on_heartbeat(a_heartbeat(grant_id="0.7", tasks_position=99), now=0.0)
    assert missing_tasks(registry.workers["worker-1"], ledger, limit=1, now=9.0, grace=0.0) == []
