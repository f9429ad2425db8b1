"""A sample counts if the log knows its task, grant, seed and worker."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from support.builders import a_header, a_sample, a_task

from rollog.rules.issued_tasks import IssuedTasks, replica_seed
from schemas import Grant, Kind, Status

grants = {"1.1": Grant(grant_id="1.1", epoch=1, worker_id="worker-1", partition=0, start_offset=0)}


def issued(**changes: Any) -> IssuedTasks:
    tasks = IssuedTasks()
    tasks.add(a_task(4, 0, seed=0, **changes), partition=0, offset=5)
    return tasks


def placed(tasks: IssuedTasks, newest_epoch: int = 1, **changes: Any) -> tuple[int, str | None]:
    sample = replace(a_sample(4, 0), **changes)
    header = a_header(
        sample.group_id,
        sample.replica,
        offset=0,
        task_id=sample.task_id,
        attempt=sample.attempt,
        status=sample.status,
    )
    found = tasks.placed(
        header, sample, grants=grants, newest_epoch=newest_epoch, other_writers=frozenset({"teacher"})
    )
    return found.group_id, found.defect


def test_a_sample_that_says_what_its_task_says_counts_for_its_group() -> None:
    assert placed(issued()) == (4, None)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"task_id": "1.999"}, "was never issued"),
        ({"group_id": 8}, "ordered group 4"),
        ({"replica": 1}, "replica 1"),
        ({"attempt": 1}, "attempt 1"),
        ({"seed": 12}, "drawn with seed 12"),
        ({"grant_id": "1.7"}, "under grant 1.7"),
        ({"worker_id": "somebody"}, "written by somebody"),
    ],
)
def test_one_that_says_otherwise_is_dead_and_of_no_group(changes: dict[str, Any], said: str) -> None:
    group, defect = placed(issued(), **changes)
    assert group == -1
    assert said in (defect or "")


def test_a_grant_that_was_never_given_makes_no_sample_count() -> None:
    group, defect = placed(issued(grant_id="1.2"), grant_id="1.2")
    assert group == -1
    assert "never given" in (defect or "")


def test_a_task_behind_the_fence_of_a_later_dispatcher_is_void_but_a_fence_of_nobody_voids_nothing() -> None:
    tasks = issued()
    tasks.add_fence(2, partition=0, offset=3)
    tasks.add_fence(10**9, partition=0, offset=1)
    tasks.add_fence(2, partition=1, offset=0)
    assert placed(tasks, newest_epoch=1) == (4, None)
    group, defect = placed(tasks, newest_epoch=2)
    assert group == -1
    assert "void" in (defect or "")


def test_a_fence_behind_a_task_leaves_it_valid() -> None:
    tasks = issued()
    tasks.add_fence(2, partition=0, offset=6)
    assert placed(tasks, newest_epoch=2) == (4, None)


def test_each_rollout_of_a_task_has_its_own_seed() -> None:
    tasks = issued(num_replicas=2)
    assert placed(tasks, replica=1, task_id="1.400", seed=replica_seed(0, 1)) == (4, None)
    assert placed(tasks, replica=1, task_id="1.400", seed=0)[0] == -1


def test_an_attempt_without_a_rollout_may_leave_out_its_seed_and_a_lost_one_its_worker() -> None:
    tasks = issued()
    assert placed(tasks, status=Status.FAILED, seed=77) == (4, None)
    assert placed(tasks, status=Status.LOST, worker_id="") == (4, None)
    assert placed(tasks, status=Status.FAILED, worker_id="")[0] == -1


def test_the_first_of_two_tasks_of_one_id_counts_and_evaluations_are_no_training_tasks() -> None:
    tasks = issued()
    tasks.add(a_task(4, 0, seed=12), partition=0, offset=9)
    assert placed(tasks) == (4, None)
    tasks.add(a_task(6, 0, kind=Kind.EVALUATION), partition=0, offset=9)
    assert len(tasks) == 1


def test_a_dead_record_is_of_a_group_only_if_its_headers_name_a_task_of_it() -> None:
    tasks = issued()
    named = a_header(4, 0, offset=0, defect="not a sample")
    assert tasks.placed(named, None, grants=grants, newest_epoch=1).group_id == 4
    other = a_header(4, 1, offset=0, defect="not a sample")
    found = tasks.placed(other, None, grants=grants, newest_epoch=1)
    assert (found.group_id, found.replica, found.defect) == (-1, -1, "not a sample")


def test_named_other_writers_may_add_to_groups_that_were_issued() -> None:
    header = a_header(4, 1, offset=0, task_id="theirs")
    sample = a_sample(4, 1, worker_id="teacher", task_id="theirs", grant_id="", seed=99)
    found = issued().placed(
        header, sample, grants=grants, newest_epoch=1, other_writers=frozenset({"teacher"})
    )
    assert (found.group_id, found.is_by_other) == (4, True)
    invented = a_header(5, 1, offset=0, task_id="theirs")
    found = issued().placed(
        invented, sample, grants=grants, newest_epoch=1, other_writers=frozenset({"teacher"})
    )
    assert found.group_id == -1


def test_closed_groups_are_forgotten() -> None:
    tasks = issued()
    tasks.forget([4, 7])
    assert len(tasks) == 0
    assert not tasks.has_group(4)


def test_what_is_not_read_yet_is_not_known() -> None:
    tasks = issued()
    header = a_header(4, 0, offset=0)
    assert tasks.knows(header, grants=grants, newest_epoch=1)
    assert not tasks.knows(header, grants={}, newest_epoch=1)
    assert not tasks.knows(a_header(4, 1, offset=0), grants=grants, newest_epoch=1)
    tasks.add_fence(2, partition=0, offset=1)
    assert not tasks.knows(header, grants=grants, newest_epoch=1)
    assert tasks.knows(header, grants=grants, newest_epoch=2)
