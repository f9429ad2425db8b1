"""What is done behind a step in flight, on its thread."""

from __future__ import annotations

import time
from threading import Event, Thread
from typing import TYPE_CHECKING, Any, cast

import pytest
from support.late_background import LateExecutor

from rollog.kernel.errors import WeightsError
from trainer.in_flight import Background, InFlight, LandedStep, SealedStep

if TYPE_CHECKING:
    from collections.abc import Callable


class Tidies:
    """A publisher that remembers whether its work was over when it came to tidy."""

    def __init__(self, error: Exception | None = None) -> None:
        self.were_over: list[bool] = []
        self._error = error

    def tidy(self, is_over: Callable[[], bool]) -> None:
        self.were_over.append(is_over())
        if self._error is not None:
            raise self._error


class Lands(InFlight):
    """Steps that land at once, or never where they are None."""

    def _land(self, step: SealedStep) -> LandedStep:
        if step is None:
            raise WeightsError("the store is away")
        return cast("LandedStep", step)


def a_step(write_seconds: float = 0.0) -> Any:
    return LandedStep(
        entry=cast("Any", None), dead_letters=(), commit_seconds=0.0, write_seconds=write_seconds
    )


class Moments:
    """A clock that goes from one moment to the next, and stays at the last one."""

    def __init__(self, moments: list[float]) -> None:
        self._moments = moments

    def __call__(self) -> float:
        return self._moments.pop(0) if len(self._moments) > 1 else self._moments[0]


def in_flight(
    publisher: Tidies, steps: LateExecutor, stop: Event, clock: Callable[[], float] = time.monotonic
) -> InFlight:
    background = Background(steps=steps, checkpoints=LateExecutor(0), pauses_seconds=())
    return Lands(cast("Any", publisher), cast("Any", None), background, clock=clock, stop=stop)


@pytest.mark.parametrize("then", ["goes on", "the next step", "the next seal", "a stop", "the end"])
def test_behind_a_step_that_landed_the_publisher_tidies_and_gives_way(then: str) -> None:
    publisher, steps, stop = Tidies(), LateExecutor(), Event()
    flight = in_flight(publisher, steps, stop)
    flight.send(a_step())
    if then == "the next step":
        assert flight.landed(wait=True) is not None
        flight.send(a_step())
    elif then == "the next seal":
        flight.make_way()
    elif then == "a stop":
        stop.set()
    elif then == "the end":
        flight.close()
    steps.futures[1].run()
    assert publisher.were_over == [then != "goes on"]


def test_behind_the_step_that_it_gave_way_to_it_tidies_again() -> None:
    publisher, steps = Tidies(), LateExecutor()
    flight = in_flight(publisher, steps, Event())
    flight.make_way()
    flight.send(a_step())
    steps.futures[1].run()
    assert publisher.were_over == [False]


@pytest.mark.parametrize("then", ["the next seal", "the end"])
def test_it_waits_for_workers_to_take_the_version_in_until_the_next_step(then: str) -> None:
    publisher, steps, clock = Tidies(), LateExecutor(), Moments([0.0, 10.0, 1000.0])
    flight = in_flight(publisher, steps, Event(), clock=clock)
    flight.send(a_step(write_seconds=600.0))
    steps.futures[1].run()
    assert flight.landed() is not None
    flight.make_way()
    flight.send(a_step(write_seconds=600.0))
    tidying = Thread(target=steps.futures[3].run)
    tidying.start()
    if then == "the next seal":
        flight.make_way()
    else:
        flight.close()
    tidying.join(60)
    assert publisher.were_over == [False, True]


def test_a_step_that_is_tidied_late_tells_nothing_of_when_the_next_one_landed() -> None:
    now = 0.0
    publisher, steps = Tidies(), LateExecutor()
    flight = in_flight(publisher, steps, Event(), clock=lambda: now)
    flight.send(a_step(write_seconds=600.0))
    steps.futures[1].run()
    assert flight.landed() is not None
    now = 1000.0
    flight.make_way()
    flight.send(a_step(write_seconds=600.0))
    assert flight.landed(wait=True) is not None
    flight.make_way()
    flight.send(a_step(write_seconds=600.0))
    steps.futures[3].run()
    now = 2000.0
    flight.make_way()
    assert flight.landed(wait=True) is not None
    flight.send(a_step(write_seconds=600.0))
    tidying = Thread(target=steps.futures[7].run, daemon=True)
    tidying.start()
    tidying.join(60)
    assert publisher.were_over == [False, True, False]


def test_behind_a_step_that_did_not_land_nothing_is_tidied() -> None:
    publisher, steps = Tidies(), LateExecutor()
    flight = in_flight(publisher, steps, Event())
    flight.send(cast("Any", None))
    steps.land()
    assert publisher.were_over == []
    with pytest.raises(WeightsError):
        flight.landed()


def test_what_goes_wrong_there_is_said_and_ends_nothing(caplog: pytest.LogCaptureFixture) -> None:
    publisher, steps = Tidies(RuntimeError("a bug")), LateExecutor()
    flight = in_flight(publisher, steps, Event())
    flight.send(a_step())
    steps.land()
    assert flight.landed() is not None
    assert "the next cumulative patch is not prepared" in caplog.text
