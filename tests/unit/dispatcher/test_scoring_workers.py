"""The dispatcher and workers that score beside their slots: more tasks for them, and never without bound."""

from __future__ import annotations

import pytest
from support.builders import groups_config
from support.dispatcher_driver import DispatcherDriver

from rollog.settings.generation import RewardConfig


def a_driver(max_in_flight: int) -> DispatcherDriver:
    driver = DispatcherDriver(
        num_prompts=50,
        groups=groups_config(groups_per_batch=50, group_size=4),
        reward=RewardConfig(function="rewards:score", max_in_flight=max_in_flight),
    )
    driver.publish_ledger()
    return driver


def test_tasks_follow_the_rollouts_that_are_scored_up_and_down() -> None:
    driver = a_driver(max_in_flight=64)
    dispatcher = driver.dispatcher()
    for num_scoring, num_open in ((0, 4), (3, 7), (5, 9), (1, 9)):
        driver.beat(capacity=4, num_scoring=num_scoring)
        driver.turn(dispatcher)
        assert len(driver.tasks()) == num_open
    # Down to one that is scored, a task that ends is not followed by another until the worker is back at five.
    for task in driver.tasks()[:4]:
        driver.end(task)
    driver.turn(dispatcher)
    assert len(driver.tasks()) == 9
    driver.end(driver.tasks()[4])
    driver.turn(dispatcher)
    assert len(driver.tasks()) == 10


@pytest.mark.parametrize("claim", [10**9, (1 << 63) - 1])
def test_a_forged_claim_brings_a_worker_no_more_tasks_than_the_settings_allow(claim: int) -> None:
    driver = a_driver(max_in_flight=6)
    dispatcher = driver.dispatcher()
    for _ in range(8):
        driver.beat(capacity=4, num_scoring=claim)
        driver.turn(dispatcher)
    assert len(driver.tasks()) == 4 + 6


def test_a_negative_claim_is_none() -> None:
    driver = a_driver(max_in_flight=6)
    dispatcher = driver.dispatcher()
    driver.beat(capacity=4, num_scoring=-(10**9))
    driver.turn(dispatcher)
    assert len(driver.tasks()) == 4
