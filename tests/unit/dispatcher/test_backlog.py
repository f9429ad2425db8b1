"""The dispatcher's backlog, by which workers are scaled: what is ordered, and what waits for slots."""

from __future__ import annotations

from typing import TYPE_CHECKING

from support.dispatcher_driver import DispatcherDriver, started_driver

from rollog.settings.generation import DataConfig
from rollog.settings.run import RunConfig

if TYPE_CHECKING:
    from producers.dispatcher.dispatcher import Dispatcher


def backlog(dispatcher: Dispatcher) -> tuple[float | None, float | None]:
    """(open, waiting) as a scrape shows them."""
    registry = dispatcher._metrics.registry
    return (
        registry.get_sample_value("rollog_dispatcher_rollouts_open"),
        registry.get_sample_value("rollog_dispatcher_rollouts_waiting"),
    )


def count(driver: DispatcherDriver, dispatcher: Dispatcher) -> tuple[float | None, float | None]:
    """The backlog after what was written is read, and after the pause between two counts."""
    driver.turn(dispatcher)
    driver.now += 1.0
    driver.turn(dispatcher, times=1)
    return backlog(dispatcher)


def test_without_a_worker_everything_that_may_be_ordered_waits() -> None:
    driver = DispatcherDriver()
    driver.publish_ledger()
    assert count(driver, driver.dispatcher()) == (0, 4)


def test_before_genesis_nothing_is_ordered_and_nothing_waits() -> None:
    driver = DispatcherDriver()
    assert count(driver, driver.dispatcher()) == (0, 0)


def test_what_a_worker_has_no_slot_for_waits() -> None:
    driver = DispatcherDriver()
    driver.publish_ledger()
    driver.beat(capacity=3)
    dispatcher = driver.dispatcher()
    assert count(driver, dispatcher) == (3, 1)
    driver.end(driver.tasks()[0])
    driver.beat(capacity=3, grant_id="1.1")
    assert count(driver, dispatcher) == (3, 0)


def test_at_the_end_of_the_dataset_only_the_groups_that_are_left_wait() -> None:
    driver = DispatcherDriver(num_prompts=1, data=DataConfig(num_epochs=1))
    driver.publish_ledger()
    assert count(driver, driver.dispatcher()) == (0, 2)


def test_after_the_last_step_only_the_final_evaluation_waits_and_then_nothing() -> None:
    driver = DispatcherDriver(num_held_out=3, run_config=RunConfig(num_steps=1))
    driver.ledger.step()
    driver.publish_ledger()
    driver.beat(capacity=1, served_version=1)
    dispatcher = driver.dispatcher()
    assert count(driver, dispatcher) == (1, 2)
    for _ in range(3):
        driver.end(driver.tasks()[-1], version=1)
        driver.turn(dispatcher)
    assert count(driver, dispatcher) == (0, 0)


def test_a_finished_batch_waits_for_the_trainer_and_for_no_worker() -> None:
    driver = started_driver()
    dispatcher = driver.dispatcher()
    driver.turn(dispatcher)
    for task in driver.tasks():
        driver.end(task)
    assert count(driver, dispatcher) == (0, 0)
