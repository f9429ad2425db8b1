"""What the dispatcher says it waits for, on an in-memory broker with the clock turned by hand."""

from __future__ import annotations

import io
import logging
from typing import TYPE_CHECKING, Any

import pytest
from support.dispatcher_driver import DispatcherDriver

from rollog.kernel.logs import configure_logging
from rollog.settings.generation import DispatchConfig, EvaluationConfig
from schemas import DeadLetter, RoleStatus, RunRole, WorkerState
from schemas.codec import encode

if TYPE_CHECKING:
    from collections.abc import Iterator

    from producers.dispatcher.dispatcher import Dispatcher

step_seconds = 1.0


@pytest.fixture
def logged() -> Iterator[io.StringIO]:
    logger = logging.getLogger("rollog")
    before = (list(logger.handlers), logger.level, logger.propagate)
    stream = io.StringIO()
    configure_logging({}, stream=stream)
    yield stream
    logger.handlers[:], logger.level, logger.propagate = before


class Stillness(DispatcherDriver):
    """A run whose trainer lives, unless it is told not to."""

    def __init__(self, **sections: Any) -> None:
        super().__init__(**({"dispatch": DispatchConfig(prefetch_tasks=0, lease_seconds=30.0)} | sections))
        self.trainer: dict[str, Any] | None = {}

    def pass_time(self, dispatcher: Dispatcher, seconds: int, **beat: Any) -> None:
        for _ in range(seconds):
            self.now += step_seconds
            if self.trainer is not None:
                values = {"version": self.ledger.state.version} | self.trainer
                self.say(RoleStatus(role=RunRole.TRAINER, role_id="t", **values))
            if "worker_id" in beat:
                self.beat(**beat)
            self.turn(dispatcher, times=1)

    def say(self, status: RoleStatus) -> None:
        self.producer.send(self.topics.workers, 0, encode(status), key=status.role.encode())
        self.producer.flush(1.0)


def started(**sections: Any) -> tuple[Stillness, Dispatcher]:
    driver = Stillness(**sections)
    driver.publish_ledger()
    return driver, driver.dispatcher()


def test_no_trainer_is_told_with_the_seconds_since_it_was_heard() -> None:
    driver, dispatcher = started()
    driver.pass_time(dispatcher, 5, worker_id="w")
    driver.trainer = None
    driver.pass_time(dispatcher, 20, worker_id="w")
    assert dispatcher.voice.status.waits_on == "trainer"
    assert dispatcher.voice.status.waiting_for.startswith("no trainer since 20 s; ")


def test_a_trainer_that_left_is_not_waited_for_ten_seconds() -> None:
    driver, dispatcher = started()
    driver.pass_time(dispatcher, 12, worker_id="w")
    driver.trainer = None
    driver.producer.send(driver.topics.workers, 0, None, key=b"trainer")
    driver.pass_time(dispatcher, 3, worker_id="w")
    assert dispatcher.voice.status.waiting_for.startswith("no trainer since 3 s; ")


def test_a_trainer_that_never_was_heard_is_told_so() -> None:
    driver, dispatcher = started()
    driver.trainer = None
    driver.pass_time(dispatcher, 15, worker_id="w")
    assert "no trainer was heard in 15 s" in dispatcher.voice.status.waiting_for


def test_the_worker_that_holds_the_tasks_is_named_with_groups_and_time() -> None:
    driver, dispatcher = started()
    driver.pass_time(dispatcher, 30, worker_id="hung")
    status = dispatcher.voice.status
    assert status.waits_on == "worker"
    assert "worker hung has 4 task(s) of group(s) 0, 1 for 2" in status.waiting_for
    assert "end it: its tasks go to other workers" in status.waiting_for


def test_a_worker_that_holds_tasks_and_cannot_load_says_why() -> None:
    driver, dispatcher = started()
    driver.pass_time(dispatcher, 3, worker_id="w")
    driver.pass_time(
        dispatcher,
        12,
        worker_id="w",
        state=WorkerState.LOAD_FAILED,
        served_version=None,
        error="no \x1b[2Jfile",
    )
    assert "worker w has 4 task(s)" in dispatcher.voice.status.waiting_for
    assert "cannot load weights: no \\x1b[2Jfile" in dispatcher.voice.status.waiting_for


def test_a_worker_that_cannot_load_and_holds_nothing_is_named() -> None:
    driver, dispatcher = started()
    driver.pass_time(
        dispatcher, 15, worker_id="w", state=WorkerState.LOAD_FAILED, served_version=None, error="404"
    )
    assert "worker w cannot load weights: 404" in dispatcher.voice.status.waiting_for
    assert "weights.uri" in dispatcher.voice.status.waiting_for


def test_a_worker_that_serves_an_old_version_because_it_cannot_fetch_the_newest_is_named() -> None:
    driver, dispatcher = started()
    driver.pass_time(dispatcher, 3, worker_id="w")
    driver.pass_time(dispatcher, 12, worker_id="w", state=WorkerState.SERVING, error="404")
    assert "worker w has 4 task(s)" in dispatcher.voice.status.waiting_for
    assert "cannot load weights: 404" in dispatcher.voice.status.waiting_for
    assert "weights.uri" in dispatcher.voice.status.waiting_for


def test_a_worker_that_ended_because_it_could_not_load_is_still_named() -> None:
    driver, dispatcher = started()
    driver.pass_time(
        dispatcher, 3, worker_id="w", state=WorkerState.LOAD_FAILED, served_version=None, error="404"
    )
    driver.leave("w")
    driver.pass_time(dispatcher, 12)
    said = dispatcher.voice.status.waiting_for
    assert said.startswith("no worker since 12 s, and worker w cannot load weights: 404; ")
    driver.pass_time(dispatcher, 12, worker_id="w2", state=WorkerState.STARTING, served_version=None)
    said = dispatcher.voice.status.waiting_for
    assert "no worker serves: w2 is starting, and worker w cannot load weights: 404; " in said
    driver.pass_time(dispatcher, 1, worker_id="w2")
    assert dispatcher.state.load_failure is None


def test_a_worker_whose_heartbeats_stopped_is_silent_before_its_lease_ends() -> None:
    driver, dispatcher = started()
    driver.pass_time(dispatcher, 5, worker_id="w")
    driver.pass_time(dispatcher, 10)
    assert "and is silent for 10 s" in dispatcher.voice.status.waiting_for


def test_no_worker_is_told_with_the_seconds_since_one_was_heard() -> None:
    driver, dispatcher = started()
    driver.pass_time(dispatcher, 5, worker_id="w")
    driver.leave("w")
    driver.pass_time(dispatcher, 20)
    assert dispatcher.voice.status.waiting_for.startswith("no worker since 20 s; ")


def test_a_worker_without_grant_a_starting_one_and_one_of_an_old_version_are_told() -> None:
    driver, dispatcher = started()
    driver.pass_time(dispatcher, 15, worker_id="w", state=WorkerState.STARTING, served_version=None)
    assert "no worker serves: w is starting" in dispatcher.voice.status.waiting_for
    driver.ledger.step()
    driver.publish_ledger()
    driver.pass_time(dispatcher, 15, worker_id="w", capacity=0)
    assert "no worker serves version 1: w serves 0" in dispatcher.voice.status.waiting_for


def test_full_slots_are_told() -> None:
    driver, dispatcher = started()
    driver.pass_time(dispatcher, 15, worker_id="w", capacity=0)
    assert "no slot is free" in dispatcher.voice.status.waiting_for


def test_unanswered_evaluations_are_named_with_their_worker() -> None:
    driver = Stillness(
        num_held_out=3, evaluation=EvaluationConfig(every_steps=0, num_prompts=3, sampled=False)
    )
    driver.publish_ledger()
    dispatcher = driver.dispatcher()
    driver.pass_time(dispatcher, 15, worker_id="w", capacity=3)
    assert "worker w has 3 prompt(s) of evaluation greedy of version 0" in dispatcher.voice.status.waiting_for


def test_where_all_samples_are_there_the_verdicts_are_waited_for_in_the_trainers_words() -> None:
    driver, dispatcher = started()
    driver.pass_time(dispatcher, 2, worker_id="w")
    for task in driver.tasks():
        driver.end(task)
    driver.trainer = {"waits_on": "broker", "waiting_for": "4 samples wait"}
    driver.pass_time(dispatcher, 15, worker_id="w")
    status = dispatcher.voice.status
    assert status.waits_on == "trainer"
    assert (
        "2 open group(s) wait for the trainer's verdicts; the trainer: 4 samples wait" in status.waiting_for
    )


def test_a_trainer_that_computes_is_not_blamed_on_workers() -> None:
    driver, dispatcher = started()
    driver.trainer = {"waits_on": "trainer", "waiting_for": "the trainer computes version 1; see"}
    driver.pass_time(dispatcher, 15, worker_id="w")
    assert dispatcher.voice.status.waiting_for == "the trainer computes version 1; see"


def test_it_is_logged_once_as_it_begins_each_minute_and_once_as_it_goes_on(logged: io.StringIO) -> None:
    driver, dispatcher = started()
    driver.pass_time(dispatcher, 125, worker_id="hung")
    lines = [line for line in logged.getvalue().splitlines() if "the run stands still" in line]
    assert len(lines) == 2
    assert all("WARNING dispatcher" in line and "worker hung has" in line for line in lines)
    driver.ledger.step()
    driver.publish_ledger()
    driver.pass_time(dispatcher, 5, worker_id="hung")
    assert logged.getvalue().count("the run goes on") == 1
    assert dispatcher.voice.status.waiting_for == ""


def test_heartbeats_of_roles_are_no_dead_letters_and_other_records_there_still_are() -> None:
    driver, dispatcher = started()
    driver.say(RoleStatus(role=RunRole.DISPATCHER, role_id="other"))
    driver.pass_time(dispatcher, 3, worker_id="w")
    driver.producer.send(driver.topics.workers, 0, encode(driver.tasks()[0]), key=b"x")
    driver.turn(dispatcher)
    driver.dispatcher()  # the next one reads them as history
    letters = [record for record in driver.read(driver.topics.dead_letters) if isinstance(record, DeadLetter)]
    assert [letter.reason for letter in letters] == ["expected a heartbeat, found a RolloutTask"]


def test_the_gauge_counts_while_the_run_stands_still_only() -> None:
    driver, dispatcher = started()
    registry = dispatcher._metrics.registry
    name = "rollog_dispatcher_standing_still_seconds"
    driver.pass_time(dispatcher, 40, worker_id="w")
    assert registry.get_sample_value(name) == 0.0
    driver.pass_time(dispatcher, 40, worker_id="w")
    assert registry.get_sample_value(name) == 80.0
