"""Records that are nobody's: what the dispatcher does with them, and that no task ends by them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from support.builders import a_header, a_sample
from support.dispatcher_driver import DispatcherDriver, num_partitions, started_driver

from rollog.settings.generation import EvaluationConfig
from schemas import (
    ClosedGroup,
    DeadLetter,
    DispatcherEpoch,
    Disposition,
    Grant,
    Revoke,
    RunClosed,
    Sample,
    Stopped,
)
from schemas.codec import encode
from trainer.buffer.verdicts import verdict_of


def test_what_does_not_belong_on_steps_ends_no_dispatcher() -> None:
    driver = started_driver()
    dispatcher = driver.dispatcher()
    driver.turn(dispatcher)
    copy = driver.ledger.records[0]
    for value in (b"garbage", encode(copy), encode(replace(copy, sequence=10**9))):
        driver.producer.send(driver.topics.steps, 0, value)
    driver.ledger.step()
    driver.publish_ledger()
    driver.turn(dispatcher)
    assert dispatcher.state.ledger.version == 1
    driver.turn(driver.dispatcher())  # and none that starts after it


def test_a_record_of_a_closed_group_ends_no_task_of_another() -> None:
    driver = started_driver()
    dispatcher = driver.dispatcher()
    driver.turn(dispatcher)
    tasks = driver.tasks()
    driver.ledger.verdicts([], [ClosedGroup(group_id=0, outcome=Disposition.INCOMPLETE)])
    driver.publish_ledger()
    driver.turn(dispatcher)
    of_other = next(task for task in tasks if task.group_id == 1)
    driver.end(of_other, group_id=0)
    driver.turn(dispatcher)
    assert dispatcher.state.credits.get(of_other.task_id) is not None


@pytest.mark.parametrize(
    "change",
    [{"evaluation": "other"}, {"pinned_version": 7}, {"seed": 1}, {"grant_id": "9.9"}, {"group_id": 2}],
)
def test_what_answers_no_evaluation_task_ends_none(change: dict[str, Any]) -> None:
    driver = DispatcherDriver(num_held_out=3, evaluation=EvaluationConfig(every_steps=0, sampled=False))
    driver.publish_ledger()
    driver.beat()
    dispatcher = driver.dispatcher()
    driver.turn(dispatcher)
    training, asked = driver.tasks()[3], driver.tasks()[0]
    driver.end(asked, **change)
    named: dict[str, Any] = {
        "task_id": training.task_id,
        "grant_id": training.grant_id,
        "seed": training.seed,
    }
    driver.write_sample(driver.topics.evaluations, 0, a_sample(training.group_id, training.replica, **named))
    driver.turn(dispatcher)
    assert dispatcher.state.credits.get(asked.task_id) is not None
    assert dispatcher.state.credits.get(training.task_id) is not None
    driver.end(asked)
    driver.turn(dispatcher)
    assert dispatcher.state.credits.get(asked.task_id) is None


def test_undecodable_records_of_its_topics_are_set_aside_once() -> None:
    driver = started_driver()
    driver.producer.send(driver.topics.workers, 0, b"garbage")
    driver.producer.send(driver.topics.control, 0, b"stray")
    driver.producer.send(driver.topics.evaluations, 1, b"rubbish").offset(1.0)
    driver.turn(driver.dispatcher())
    driver.turn(driver.dispatcher())
    letters = [record for record in driver.read(driver.topics.dead_letters) if isinstance(record, DeadLetter)]
    assert {letter.value for letter in letters} == {b"garbage", b"rubbish", b"stray"}
    assert len(letters) == len({(letter.topic, letter.partition, letter.offset) for letter in letters})


def test_a_heartbeat_under_a_grant_of_nobodys_brings_its_worker_a_new_grant() -> None:
    driver = started_driver()
    dispatcher = driver.dispatcher()
    driver.turn(dispatcher)
    for _ in range(8):
        driver.now += 1.0
        driver.beat(grant_id="9.9")
        driver.turn(dispatcher)
    control = driver.control()
    first, second = (record.grant_id for record in control if isinstance(record, Grant))
    assert [record.grant_id for record in control if isinstance(record, Revoke)] == [first]
    lost = [
        record for record in driver.read(driver.topics.samples, num_partitions) if isinstance(record, Sample)
    ]
    assert {sample.grant_id for sample in lost} == {first}
    assert {task.grant_id for task in driver.tasks()} == {first, second}


def test_control_records_that_cannot_be_stop_no_dispatcher_and_are_set_aside() -> None:
    driver = started_driver()
    dispatcher = driver.dispatcher()
    impossible = (
        DispatcherEpoch(epoch=2**63 - 1, dispatcher_id="x"),
        Grant(grant_id="7.1", epoch=10**9, worker_id="worker-1", partition=0, start_offset=0),
        Stopped(epoch=4),
    )
    for record in impossible:
        driver.producer.send(driver.topics.control, 0, encode(record))
    driver.turn(dispatcher)
    letters = driver.read(driver.topics.dead_letters)
    assert [letter.value for letter in letters if isinstance(letter, DeadLetter)] == [
        encode(record) for record in impossible
    ]
    assert driver.tasks()
    assert driver.dispatcher().epoch == 2
    assert len(driver.read(driver.topics.dead_letters)) == 3


def test_who_says_closed_while_the_ledger_is_open_ends_no_dispatcher() -> None:
    driver = started_driver()
    dispatcher = driver.dispatcher()
    driver.producer.send(driver.topics.control, 0, encode(RunClosed(epoch=1)))
    driver.turn(dispatcher)
    assert not dispatcher.state.is_run_closed
    assert driver.tasks()


@pytest.mark.parametrize(
    "changes", [{"task_id": "1.900"}, {"seed": 1}, {"grant_id": "8.8"}, {"worker_id": "thief"}]
)
def test_a_sample_that_is_not_what_its_task_ordered_ends_no_task(changes: dict[str, Any]) -> None:
    driver = started_driver()
    dispatcher = driver.dispatcher()
    driver.turn(dispatcher)
    task = driver.tasks()[0]
    driver.end(task, **changes)
    driver.turn(dispatcher)
    assert dispatcher.state.credits.get(task.task_id) is not None
    driver.end(task)
    driver.turn(dispatcher)
    assert dispatcher.state.credits.get(task.task_id) is None


def test_a_sample_that_the_trainer_found_to_be_of_no_group_is_made_again() -> None:
    driver = started_driver()
    dispatcher = driver.dispatcher()
    driver.turn(dispatcher)
    task = driver.tasks()[0]
    offset = driver.end(task)
    driver.turn(dispatcher)
    header = a_header(-1, -1, offset=offset, partition=task.sample_partition)
    driver.ledger.verdicts([verdict_of(header, Disposition.DEAD, version=0)])
    driver.publish_ledger()
    driver.turn(dispatcher)
    again = [
        later for later in driver.tasks() if (later.group_id, later.replica) == (task.group_id, task.replica)
    ]
    assert [later.attempt for later in again] == [0, 1]
