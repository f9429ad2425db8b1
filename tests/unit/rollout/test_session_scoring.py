"""What is generated is scored beside the engine: its slot is free, and nothing else about it has changed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from support.builders import a_task
from support.session_driver import SessionDriver, a_grant, a_notice, an_evaluation, endings, started

from producers.rollout.actions import Interrupt, Leave, ReadTasks, Swap
from producers.rollout.slots import Slots
from schemas import Cancel, CancelReason, Status, Stop

if TYPE_CHECKING:
    from producers.rollout.session import ReloadMode


def scoring(driver: SessionDriver) -> tuple[int, int]:
    """Slots in use, and rollouts that are scored beside them."""
    return driver.session.num_running, driver.session.num_scoring


def test_the_next_task_starts_when_the_tokens_are_there_and_before_the_reward_is() -> None:
    driver = SessionDriver(capacity=1)
    driver.task(a_task(0))
    driver.task(a_task(1))
    assert started(driver.generate("1.0")) == ["1.100"]
    assert scoring(driver) == (1, 1)
    assert driver.session.open_task_ids == ["1.0", "1.100"]
    assert driver.score("1.0") == []
    assert scoring(driver) == (1, 0)
    assert driver.session.open_task_ids == ["1.100"]


def test_no_more_slots_are_freed_than_there_are_scoring_places() -> None:
    driver = SessionDriver(capacity=1, max_scoring=1)
    for number in range(4):
        driver.task(a_task(number))
    assert started(driver.generate("1.0")) == ["1.100"]
    assert started(driver.generate("1.100")) == []
    assert scoring(driver) == (1, 1)
    assert driver.session.num_generating == 0
    # The next place goes to what waits for it, and the slot of that is free.
    assert started(driver.score("1.0")) == ["1.200"]
    assert scoring(driver) == (1, 1)
    driver.generate("1.200")
    # What is scored while it waits for a place frees its slot by its end.
    assert started(driver.score("1.200")) == ["1.300"]
    assert scoring(driver) == (1, 1)


def test_places_go_round_in_the_order_in_which_the_tokens_came() -> None:
    slots = Slots(capacity=3, max_scoring=1)
    for name in "abc":
        slots.take(name, 1)
        slots.generated(name)
    assert (slots.num_used, slots.num_scoring) == (2, 1)
    slots.ended("a")
    slots.ended("c")
    assert (slots.num_used, slots.num_scoring) == (0, 1)
    slots.ended("b")
    assert (slots.num_used, slots.num_scoring) == (0, 0)


def test_a_task_with_several_replicas_frees_its_slots_with_its_last_token() -> None:
    driver = SessionDriver(capacity=2)
    driver.task(a_task(0, num_replicas=2))
    driver.task(a_task(1))
    assert driver.end("1.0") == []
    assert scoring(driver) == (2, 0)
    assert started(driver.generate("1.0")) == ["1.100"]
    assert scoring(driver) == (1, 2)
    driver.score("1.0")
    assert scoring(driver) == (1, 0)


def test_a_task_larger_than_all_scoring_places_keeps_its_slots_and_holds_nobody_up() -> None:
    driver = SessionDriver(capacity=4, max_scoring=2)
    driver.task(a_task(0, num_replicas=3))
    driver.task(a_task(1))
    for _ in range(3):
        driver.generate("1.0")
    driver.generate("1.100")
    assert scoring(driver) == (3, 1)
    for _ in range(3):
        driver.score("1.0")
    assert scoring(driver) == (0, 1)


def test_a_task_that_is_scored_can_be_cancelled_and_ends_once() -> None:
    driver = SessionDriver()
    driver.task(a_task(0))
    driver.generate("1.0")
    cancel = Cancel(task_id="1.0", epoch=1, grant_id="1.1", reason=CancelReason.STALE)
    assert driver.task(cancel) == [Interrupt("1.0")]
    assert driver.task(cancel) == []
    ending = driver.session.ending_of("1.0")
    assert ending is not None
    assert ending.cancel_reason == "stale"
    assert driver.score("1.0") == []
    assert (driver.session.open_task_ids, scoring(driver)) == ([], (0, 0))


def test_a_task_that_arrives_again_while_it_is_scored_is_not_begun_again() -> None:
    driver = SessionDriver()
    driver.task(a_task(0))
    driver.generate("1.0")
    assert driver.task(a_task(0)) == []


def test_what_is_scored_expires_with_its_grant_and_the_next_grant_finds_the_slots_free() -> None:
    driver = SessionDriver(capacity=1)
    driver.task(a_task(0))
    driver.generate("1.0")
    actions = driver.session.on_control(a_grant(grant_id="1.2", partition=3, start_offset=0))
    assert actions == [Interrupt("1.0"), ReadTasks(3, 0)]
    ending = driver.session.ending_of("1.0")
    assert ending is not None
    assert ending.status is Status.EXPIRED
    assert started(driver.task(a_task(1, grant_id="1.2"))) == ["1.100"]


def test_a_worker_that_leaves_interrupts_what_is_scored() -> None:
    driver = SessionDriver()
    driver.task(a_task(0))
    driver.generate("1.0")
    assert driver.task(Stop(epoch=1, grant_id="1.1")) == [Interrupt("1.0"), Leave("end of run")]
    assert driver.score("1.0") == []


def test_scoring_that_takes_too_long_fails() -> None:
    driver = SessionDriver()
    driver.task(a_task(0, timeout_seconds=5.0))
    driver.generate("1.0")
    driver.now = 5.1
    assert driver.session.end_overdue() == [Interrupt("1.0")]


@pytest.mark.parametrize("reload", ["keep", "drain", "abort"])
@pytest.mark.parametrize("max_scoring", [1, 2])
def test_a_reload_waits_for_no_reward_and_takes_nothing_from_it(reload: ReloadMode, max_scoring: int) -> None:
    driver = SessionDriver(reload=reload, max_scoring=max_scoring)
    driver.task(a_task(0))
    driver.task(a_task(1))
    driver.session.on_weights(a_notice(1))
    driver.generate("1.0")
    driver.generate("1.100")
    # Nothing is suspended either: the tokens are there, whether or not the slot is free yet.
    assert driver.session.fetched(a_notice(1)) == [Swap(a_notice(1))]
    driver.session.loaded(a_notice(1))
    assert driver.session.first_versions == {"1.0": 0, "1.100": 0}
    driver.score("1.0")
    driver.score("1.100")
    assert driver.session.open_task_ids == []


def test_a_drain_ends_with_the_last_token() -> None:
    driver = SessionDriver(reload="drain")
    driver.task(a_task(0))
    driver.session.on_weights(a_notice(1))
    driver.session.fetched(a_notice(1))
    assert driver.generate("1.0") == [Swap(a_notice(1))]


def test_a_pinned_evaluation_holds_a_version_until_its_last_token() -> None:
    driver = SessionDriver()
    driver.task(an_evaluation(1, version=0))
    driver.session.on_weights(a_notice(1))
    assert driver.session.fetched(a_notice(1)) == []
    assert driver.generate("1.e1") == [Swap(a_notice(1))]
    driver.session.loaded(a_notice(1))
    assert driver.score("1.e1") == []
    assert endings(driver.task(an_evaluation(2, version=0))) == [("1.e2", Status.EXPIRED, "version_gone")]
