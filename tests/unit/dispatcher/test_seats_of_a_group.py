"""Replicas that are seats of one episode: they go out together, and again as far as they are missing."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from support.builders import groups_config
from support.dispatcher_driver import DispatcherDriver, num_partitions

from producers.dispatcher.credits import full_of_group
from producers.dispatcher.group_tracker import Wanted
from producers.dispatcher.seats import tasks_of
from rollog.rules.issued_tasks import replica_seed
from rollog.settings.environment import EnvironmentConfig
from rollog.settings.generation import DispatchConfig
from schemas import Cancel, CancelReason, IssueReason, Kind, RolloutTask, Sample, Status, sample_id

if TYPE_CHECKING:
    from rollog.kernel.broker.memory import MemoryBroker


def driver_of_pairs(
    *, num_held_out: int = 0, num_seats: int = 2, memory_broker: MemoryBroker | None = None, **groups: int
) -> DispatcherDriver:
    """Groups of two episodes with two seats, one at a time; on a broker where a run may have begun."""
    driver = DispatcherDriver(
        num_held_out=num_held_out,
        memory_broker=memory_broker,
        groups=groups_config(**({"groups_per_batch": 1, "group_size": 4} | groups)),
        environment=EnvironmentConfig(name="nim", seats=num_seats),
        dispatch=DispatchConfig(prefetch_tasks=0, lease_seconds=3.0),
    )
    if memory_broker is None:
        driver.publish_ledger()
    return driver


def end_seat(driver: DispatcherDriver, task: RolloutTask, seat: int, *, is_failed: bool = False) -> None:
    replica = task.replica + seat
    failure: dict[str, Any] = {"status": Status.FAILED, "segments": (), "error_class": "EnvironmentFailed"}
    driver.end(
        task,
        reward=float(seat),
        replica=replica,
        seed=replica_seed(task.seed, seat),
        sample_id=sample_id(task.group_id, replica, task.attempt),
        **(failure if is_failed else {}),
    )


def ordered(driver: DispatcherDriver, attempt: int = 0) -> list[tuple[int, int]]:
    """The first replica and the number of replicas of each task."""
    return sorted((task.replica, task.num_replicas) for task in driver.tasks() if task.attempt == attempt)


def wanted(*replicas: tuple[int, int]) -> list[Wanted]:
    return [
        Wanted(
            group_id=0,
            replica=replica,
            attempt=attempt,
            reason=IssueReason.LOST,
            num_groups_ahead=0,
            protected=False,
        )
        for replica, attempt in replicas
    ]


def test_neighbouring_seats_of_one_episode_go_together_as_far_as_they_are_equal_attempts() -> None:
    attempts = wanted((0, 1), (1, 1), (2, 1), (3, 1), (5, 1), (6, 2), (7, 1), (8, 1), (9, 1))
    together = [[each.replica for each in task] for task in tasks_of(attempts, 3)]
    assert together == [[0, 1, 2], [3], [5], [6], [7, 8], [9]]
    assert [len(task) for task in tasks_of(attempts, 1)] == [1] * 9


def test_the_seats_of_an_episode_are_one_task_and_episodes_are_spread_over_workers() -> None:
    driver = driver_of_pairs()
    driver.beat("worker-1", capacity=3)
    driver.beat("worker-2", capacity=3)
    driver.turn(driver.dispatcher())
    assert ordered(driver) == [(0, 2), (2, 2)]
    assert len({task.grant_id for task in driver.tasks()}) == 2


def test_an_episode_that_finds_no_room_for_all_its_seats_waits() -> None:
    driver = driver_of_pairs()
    driver.beat("worker-1", capacity=3)
    dispatcher = driver.dispatcher()
    driver.turn(dispatcher)
    assert ordered(driver) == [(0, 2)]
    for seat in (0, 1):
        end_seat(driver, driver.tasks()[0], seat)
    driver.turn(dispatcher)
    assert ordered(driver) == [(0, 2), (2, 2)]


def test_a_worker_with_fewer_slots_than_seats_plays_one_episode_at_a_time() -> None:
    driver = driver_of_pairs()
    driver.beat("worker-1", capacity=1)
    driver.turn(driver.dispatcher())
    assert ordered(driver) == [(0, 2)]


def test_of_an_episode_lost_in_the_middle_only_seats_without_a_sample_are_lost_and_made_again() -> None:
    driver = driver_of_pairs()
    driver.beat("worker-1", capacity=4)
    dispatcher = driver.dispatcher()
    driver.turn(dispatcher)
    first = next(task for task in driver.tasks() if task.replica == 0)
    end_seat(driver, first, 0)
    driver.beat("worker-2", capacity=4)
    driver.turn(dispatcher)
    for now in (1.0, 2.0, 3.0, 3.5):
        driver.now = now
        driver.beat("worker-2", grant_id="1.2", capacity=4)
        driver.turn(dispatcher)
    records = driver.read(driver.topics.samples, num_partitions)
    lost = [each for each in records if isinstance(each, Sample) and each.status is Status.LOST]
    assert sorted(sample.replica for sample in lost) == [1, 2, 3]
    # Seat 1 of the first episode alone, the second episode whole.
    assert ordered(driver, attempt=1) == [(1, 1), (2, 2)]
    assert Counter(
        (each.group_id, each.replica, each.attempt) for each in records if isinstance(each, Sample)
    ) == {(0, replica, 0): 1 for replica in range(4)}


def test_a_held_out_game_is_one_task_and_over_when_each_of_its_seats_has_a_sample() -> None:
    driver = driver_of_pairs(num_held_out=2)
    driver.beat("worker-1", capacity=3)
    dispatcher = driver.dispatcher()
    driver.turn(dispatcher)
    # A game takes two of the three slots, so the second one waits for the first, and training for both.
    assert ordered(driver) == [(0, 2)]
    (first,) = driver.tasks()
    end_seat(driver, first, 1)
    driver.turn(dispatcher)
    assert not dispatcher.state.evaluations.is_complete(0)
    assert len(driver.tasks()) == 1
    end_seat(driver, first, 0)
    driver.turn(dispatcher)
    (second,) = driver.tasks()[1:]
    assert (second.kind, second.group_id, second.num_replicas) == (Kind.EVALUATION, 1, 2)
    for seat in (0, 1):
        end_seat(driver, second, seat)
    driver.turn(dispatcher)
    assert dispatcher.state.evaluations.is_complete(0)
    assert [task.kind for task in driver.tasks()[2:]] == [Kind.TRAINING]


def test_a_held_out_game_that_is_lost_in_the_middle_is_played_again_with_all_its_seats() -> None:
    driver = driver_of_pairs(num_held_out=1)
    driver.beat("worker-1", capacity=2)
    dispatcher = driver.dispatcher()
    driver.turn(dispatcher)
    (first,) = driver.tasks()
    end_seat(driver, first, 0)
    driver.leave("worker-1")
    driver.turn(dispatcher)
    driver.beat("worker-2", capacity=2)
    driver.turn(dispatcher)
    records = driver.read(driver.topics.evaluations, num_partitions)
    ends = [(each.replica, each.status) for each in records if isinstance(each, Sample)]
    assert ends == [(0, Status.FINISHED), (1, Status.LOST)]
    again = driver.tasks()[1]
    assert (again.kind, again.replica, again.num_replicas, again.attempt) == (Kind.EVALUATION, 0, 2, 1)
    end_seat(driver, again, 1)
    driver.turn(dispatcher)
    # Seat 0 has its sample of the first game; a dispatcher that starts now finds the same.
    assert dispatcher.state.evaluations.is_complete(0)
    assert driver.dispatcher().state.evaluations.to_plain() == dispatcher.state.evaluations.to_plain()


def test_a_held_out_game_that_was_ordered_before_seats_were_recorded_is_played_again_with_all() -> None:
    before = driver_of_pairs(num_held_out=1, num_seats=1)
    before.beat("worker-1", capacity=1)
    before.turn(before.dispatcher())
    (task,) = before.tasks()
    assert (task.kind, task.num_replicas) == (Kind.EVALUATION, 1)
    end_seat(before, task, 0)
    driver = driver_of_pairs(num_held_out=1, memory_broker=before.broker)
    driver.beat("worker-1", capacity=2, grant_id=task.grant_id)
    dispatcher = driver.dispatcher()
    driver.turn(dispatcher)
    again = driver.tasks()[1]
    assert (again.kind, again.replica, again.num_replicas, again.attempt) == (Kind.EVALUATION, 0, 2, 1)
    for seat in (0, 1):
        assert not dispatcher.state.evaluations.is_complete(0)
        end_seat(driver, again, seat)
        driver.turn(dispatcher)
    assert dispatcher.state.evaluations.is_complete(0)


def test_an_episode_that_failed_is_made_again_with_all_its_seats() -> None:
    driver = driver_of_pairs()
    driver.beat("worker-1", capacity=4)
    dispatcher = driver.dispatcher()
    driver.turn(dispatcher)
    second = next(task for task in driver.tasks() if task.replica == 2)
    for seat in (0, 1):
        end_seat(driver, second, seat, is_failed=True)
    driver.turn(dispatcher)
    assert ordered(driver, attempt=1) == [(2, 2)]


def test_an_episode_of_which_nothing_is_needed_any_more_is_cancelled_as_one() -> None:
    driver = driver_of_pairs(redundant_replicas=2)
    driver.beat("worker-1", capacity=6)
    dispatcher = driver.dispatcher()
    driver.turn(dispatcher)
    tasks = sorted(driver.tasks(), key=lambda task: task.replica)
    for task in tasks[:2]:
        for seat in (0, 1):
            end_seat(driver, task, seat)
    driver.turn(dispatcher)
    cancels = [each for each in driver.read(driver.topics.tasks, 3) if isinstance(each, Cancel)]
    assert [(each.task_id, each.reason) for each in cancels] == [(tasks[2].task_id, CancelReason.SURPLUS)]


def test_no_worker_gets_more_seats_of_a_group_than_are_redundant() -> None:
    assert full_of_group({"a": 2, "b": 1}, num_workers=4, num_replicas=6, num_redundant=2, num_slots=2) == {
        "a",
        "b",
    }
    driver = driver_of_pairs(group_size=2, redundant_replicas=2)
    for worker_id, capacity in (("worker-1", 2), ("worker-2", 2), ("worker-3", 9)):
        driver.beat(worker_id, capacity=capacity)
    driver.turn(driver.dispatcher())
    assert ordered(driver) == [(0, 2), (2, 2)]
    assert len({task.grant_id for task in driver.tasks()}) == 2
