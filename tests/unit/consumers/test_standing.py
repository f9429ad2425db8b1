"""What somebody who follows the topics is told of a run that stands still."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from support.builders import LedgerBuilder
from support.written_run import WrittenRun

from consumers.progress import RunProgress
from consumers.standing import Listener
from rollog.kernel.broker.memory import MemoryBroker
from rollog.kernel.broker.topics import RunTopics
from schemas import RoleStatus, RunRole, WorkerState, WorkerStatus

if TYPE_CHECKING:
    from consumers.progress import ProgressView

topics = RunTopics("rollog", "first")


@dataclass
class Watched:
    """A written run, and what is seen of it as time goes on."""

    run: WrittenRun = field(default_factory=lambda: WrittenRun(MemoryBroker(), topics))
    now: float = 0.0

    def __post_init__(self) -> None:
        self.progress = RunProgress(self.run.broker, topics, clock=lambda: self.now)

    def after(self, seconds: int, *roles: RoleStatus, has_worker: bool = True) -> ProgressView:
        """The view after so long, in which these roles beat every second."""
        for _ in range(seconds):
            self.now += 1.0
            for role in roles:
                self.run.write(topics.workers, role, key=role.role.encode())
            if has_worker:
                self.run.write(topics.workers, a_worker(), key=b"w")
            self.progress.poll()
        return self.progress.poll()


def a_worker() -> WorkerStatus:
    return WorkerStatus(worker_id="w", state=WorkerState.SERVING, capacity=4)


def trainer(**changes: Any) -> RoleStatus:
    return RoleStatus(role=RunRole.TRAINER, role_id="t", **changes)


def dispatcher(**changes: Any) -> RoleStatus:
    return RoleStatus(role=RunRole.DISPATCHER, role_id="d", **changes)


holding = {"version": 0, "waits_on": "worker", "waiting_for": "worker w has 3 task(s); end it"}


def test_nothing_is_said_while_the_usual_time_has_not_passed() -> None:
    watched = Watched()
    watched.run.genesis()
    assert watched.after(61, trainer(), dispatcher(**holding)).standing_still == ""


def test_no_trainer_is_told_eight_seconds_after_it_fell_silent() -> None:
    watched = Watched()
    watched.run.genesis()
    watched.after(5, trainer(), dispatcher())
    assert watched.after(8, dispatcher()).standing_still == ""
    assert watched.after(12, dispatcher()).standing_still.startswith("no trainer since 20 s; ")
    assert watched.after(1, dispatcher(), trainer()).standing_still == ""


def test_no_dispatcher_and_no_worker_are_told_alike() -> None:
    watched = Watched()
    watched.run.genesis()
    watched.after(5, trainer(version=0), dispatcher(version=0))
    assert watched.after(20, trainer(version=0)).standing_still.startswith("no dispatcher since 20 s; ")
    still = watched.after(60, trainer(version=0), dispatcher(version=0), has_worker=False).standing_still
    assert "no worker since 60 s" in still


def test_a_run_of_which_no_role_was_ever_heard_says_so() -> None:
    watched = Watched()
    assert watched.after(30).standing_still == ""
    assert watched.after(1).standing_still.startswith("no trainer was heard in 31 s; ")


def test_a_role_that_was_started_here_and_is_not_heard_yet_is_loading() -> None:
    watched = Watched()
    watched.progress = RunProgress(
        watched.run.broker,
        topics,
        clock=lambda: watched.now,
        log_here=lambda role: Path("logs/train.log") if role is RunRole.TRAINER else None,
    )
    loading = "the trainer is still loading after 31 s; its log is logs/train.log"
    assert watched.after(31, dispatcher()).standing_still == loading
    assert "still loading after 61 s" in watched.after(30, dispatcher()).standing_still
    assert watched.after(1, trainer(phase="loading the model"), dispatcher()).standing_still.endswith(
        "the trainer is loading the model"
    )


def test_a_role_that_starts_says_its_phase_and_one_that_left_is_not_shown() -> None:
    watched = Watched()
    view = watched.after(61, trainer(phase="loading the model"), dispatcher())
    assert view.standing_still == "no step for 61 s: the trainer is loading the model"
    assert {status.role: status.phase for status in view.roles} == {
        RunRole.TRAINER: "loading the model",
        RunRole.DISPATCHER: "",
    }
    watched.run.write(topics.workers, None, key=b"trainer")
    assert [status.role for status in watched.after(1, dispatcher()).roles] == [RunRole.DISPATCHER]
    assert [status.role for status in watched.after(11, trainer()).roles] == [RunRole.TRAINER]


def test_the_dispatchers_words_are_shown_and_the_trainers_where_it_acts_itself() -> None:
    watched = Watched()
    watched.run.genesis()
    said = watched.after(62, trainer(version=0), dispatcher(**holding)).standing_still
    assert said == "no step for 61 s: worker w has 3 task(s); end it"
    busy = trainer(version=0, waits_on="trainer", waiting_for="the trainer computes version 1; look")
    said = watched.after(1, busy, dispatcher(**holding)).standing_still
    assert said == "no step for 62 s: the trainer computes version 1; look"


def test_words_of_an_earlier_version_are_not_shown() -> None:
    watched = Watched()
    watched.run.genesis()
    watched.run.step(1, reward=0.5, lags={"0": 1})
    said = watched.after(62, trainer(version=1), dispatcher(**holding)).standing_still
    assert "worker w has" not in said
    assert "look into their logs" in said


def test_a_worker_that_starts_is_named_where_nobody_says_more() -> None:
    watched = Watched()
    watched.run.genesis()
    watched.after(30, trainer(version=0), dispatcher(version=0))
    starting = WorkerStatus(
        worker_id="v", state=WorkerState.STARTING, capacity=4, phase="starting its engine"
    )
    watched.run.write(topics.workers, starting, key=b"v")
    said = watched.after(32, trainer(version=0), dispatcher(version=0)).standing_still
    assert said == "no step for 61 s: a worker is starting its engine"


def test_the_usual_distance_is_that_of_the_brokers_append_times() -> None:
    listener = Listener(begun_at=0.0)
    ledger = LedgerBuilder()
    for number in range(4):
        listener.on_ledger(ledger.step(), 1_000_000 + 30_000 * number, now=5.0)
    assert listener.sentence(3, 125.0, has_worker=True) == ""
    assert listener.sentence(3, 126.0, has_worker=True).startswith(
        "no step for 121 s (usual 30.0 s): no trainer"
    )


def test_a_closed_run_waits_for_nothing() -> None:
    watched = Watched()
    watched.run.genesis()
    watched.after(5, trainer(), dispatcher())
    watched.run.close(0)
    assert watched.after(100, has_worker=False).standing_still == ""
