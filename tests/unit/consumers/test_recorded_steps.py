"""Steps and verdicts of a ledger as rows, and steps as they come."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from support.written_run import WrittenRun

from consumers.progress import RunProgress
from consumers.recorded_steps import (
    StepFollower,
    step_columns,
    step_rows,
    steps_of,
    verdict_columns,
    verdict_rows,
)
from rollog.kernel.errors import LedgerError
from rollog.run.step_listener import StepListener

if TYPE_CHECKING:
    from consumers.recorded_steps import TrainedStep
    from rollog.kernel.broker.memory import MemoryBroker
    from rollog.kernel.broker.topics import RunTopics


@pytest.fixture
def run(memory_broker: MemoryBroker, run_topics: RunTopics) -> WrittenRun:
    """A run of two steps that goes on."""
    written = WrittenRun(memory_broker, run_topics)
    written.genesis()
    written.step(1, reward=0.25, lags={"0": 2}, train_seconds=1.5)
    written.step(2, reward=0.5, lags={"0": 1, "1": 1, "2": 0})
    return written


def test_a_step_is_what_the_ledger_says_of_it(run: WrittenRun) -> None:
    first, second = steps_of(run.broker, run.topics)
    assert (first.step, first.reward, first.max_lag, first.train_seconds) == (1, 0.25, 0, 1.5)
    assert (second.step, second.max_lag, second.num_samples, second.loss) == (2, 1, 2, 0.5)
    assert second.weights_sha256 == f"{2:064d}"


def test_rows_have_the_columns_that_are_declared(run: WrittenRun) -> None:
    assert {tuple(sorted(row)) for row in step_rows(run.broker, run.topics)} == {tuple(sorted(step_columns))}
    verdicts = list(verdict_rows(run.broker, run.topics))
    assert {tuple(sorted(row)) for row in verdicts} == {tuple(sorted(verdict_columns))}
    assert [(row["version"], row["offset"], row["disposition"]) for row in verdicts] == [
        (1, 0, "trained"),
        (1, 1, "trained"),
        (2, 2, "trained"),
        (2, 3, "trained"),
    ]


def test_a_follower_gives_each_step_once_and_knows_the_end(run: WrittenRun) -> None:
    with StepFollower(run.broker, run.topics) as follower:
        assert [step.step for step in follower.poll()] == [1, 2]
        assert follower.poll() == []
        run.step(3, reward=1.0, lags={"0": 2})
        assert [step.step for step in follower.poll()] == [3]
        assert not follower.is_over
        run.close(3)
        assert follower.poll() == []
        assert follower.is_over


def test_a_broken_chain_is_an_error(run: WrittenRun) -> None:
    run.break_chain()
    run.step(3, reward=1.0, lags={"0": 2})
    run.step(4, reward=1.0, lags={"0": 2})
    with pytest.raises(LedgerError):
        list(steps_of(run.broker, run.topics))


def test_a_listener_hands_over_each_step_that_the_view_has(run: WrittenRun) -> None:
    heard: list[TrainedStep] = []
    follower = StepFollower(run.broker, run.topics)
    with StepListener(follower, heard.append) as listener, RunProgress(run.broker, run.topics) as progress:
        listener.show(progress.poll(), (), 0.0)
        assert [step.step for step in heard] == [1, 2]
        run.step(3, reward=1.0, lags={"0": 2})
        for _ in range(2):
            listener.show(progress.poll(), (), 0.0)
        assert [step.step for step in heard] == [1, 2, 3]
