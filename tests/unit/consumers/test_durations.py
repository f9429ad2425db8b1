"""Times of a run, from its topics."""

from __future__ import annotations

import pytest
from support.builders import a_sample
from support.written_run import WrittenRun, a_verdict

from consumers.durations import Durations, measure_durations
from rollog.kernel.broker.memory import MemoryBroker
from rollog.kernel.broker.topics import RunTopics
from rollog.kernel.errors import LedgerError
from schemas import ClosedGroup, Disposition, LedgerKind, Sample, Status, Timings

topics = RunTopics("rollog", "first")


def a_run() -> WrittenRun:
    return WrittenRun(MemoryBroker(), topics)


def a_timed_sample(
    generation: float, reward: float = 0.0, *, group: int = 0, status: Status = Status.FINISHED
) -> Sample:
    return a_sample(
        group,
        status=status,
        timings=Timings(generation_seconds=generation, reward_seconds=reward, queued_seconds=100.0),
    )


def measured(run: WrittenRun) -> Durations:
    return measure_durations(run.broker, topics)


def test_rollouts_hold_their_slots_while_they_are_generated_and_are_scored_after_that() -> None:
    run = a_run()
    run.genesis()
    run.write(topics.samples, a_timed_sample(2.0, 0.5))
    run.write(topics.samples, a_timed_sample(1.0, group=1), partition=1)

    times = measured(run)

    assert times.rollout_seconds == (2.0, 1.0)
    assert (times.mean_seconds, times.max_seconds, times.score_seconds) == (1.5, 2.0, 0.25)


def test_only_finished_rollouts_say_how_long_one_takes() -> None:
    run = a_run()
    run.genesis()
    run.write(topics.samples, a_timed_sample(1.0))
    for status in (Status.FAILED, Status.CANCELLED, Status.EXPIRED, Status.LOST):
        run.write(topics.samples, a_timed_sample(9.0, status=status))

    assert measured(run).rollout_seconds == (1.0,)


def test_what_cannot_be_decoded_is_passed_over() -> None:
    run = a_run()
    run.genesis()
    with run.broker.producer(client_id="stranger") as producer:
        producer.send(topics.samples, 0, b"no record of ours", key=None)
        producer.flush(10)
    run.write(topics.samples, a_timed_sample(1.0))

    assert measured(run).rollout_seconds == (1.0,)


def test_training_is_timed_per_sample_and_pass_without_the_first_step() -> None:
    run = a_run()
    run.genesis()
    run.step(1, reward=0.0, lags={}, train_seconds=60.0, num_epochs=2)
    run.step(2, reward=0.0, lags={}, train_seconds=6.0, num_epochs=2)
    run.step(3, reward=0.0, lags={}, train_seconds=10.0, num_epochs=2)

    times = measured(run)

    assert times.train_seconds_per_sample == pytest.approx(16 / (2 * 2 * 2))
    assert (times.num_steps, times.batch, times.num_epochs, times.alpha) == (3, 2, 2, 1.0)


def test_of_a_single_step_its_time_is_taken() -> None:
    run = a_run()
    run.genesis()
    run.step(1, reward=0.0, lags={}, train_seconds=6.0, num_epochs=1)

    assert measured(run).train_seconds_per_sample == 3.0


def test_all_that_was_generated_is_counted_against_what_was_trained() -> None:
    run = a_run()
    run.genesis()
    for seconds in (1.0, 3.0, 2.0):
        run.write(topics.samples, a_timed_sample(seconds))
    run.write(topics.samples, a_timed_sample(1.0, status=Status.CANCELLED))
    run.write(topics.samples, a_timed_sample(2.0))  # not judged yet
    run.step(1, reward=0.0, lags={})
    run.ledger(
        LedgerKind.VERDICTS,
        1,
        None,
        (a_verdict(2, Disposition.FILTERED, "zero_signal"), a_verdict(3, Disposition.CANCELLED)),
    )

    # 7 s were spent, the mean of the finished is 2 s, two samples were trained.
    assert measured(run).rollouts_per_sample == pytest.approx(7 / (2 * 2))


def test_a_run_that_has_only_begun_tells_what_it_can() -> None:
    run = a_run()
    empty = measured(run)
    run.genesis()
    begun = measured(run)

    assert empty.alpha is None
    assert begun.alpha == 1.0
    for times in (empty, begun):
        assert (times.mean_seconds, times.max_seconds, times.rollout_seconds) == (None, None, ())
        assert (times.train_seconds_per_sample, times.batch, times.rollouts_per_sample) == (None, None, None)


def test_a_broken_chain_is_not_measured() -> None:
    run = a_run()
    run.genesis()
    run.break_chain()
    run.step(1, reward=0.0, lags={})
    run.step(2, reward=0.0, lags={})

    with pytest.raises(LedgerError):
        measured(run)


def test_durations_are_told_by_group_in_the_order_of_the_groups() -> None:
    run = a_run()
    run.genesis()
    for seconds, group in ((2.0, 1), (1.0, 0), (3.0, 1)):
        run.write(topics.samples, a_timed_sample(seconds, group=group))

    assert measured(run).seconds_by_group == ((1.0,), (2.0, 3.0))


def test_filtered_groups_are_counted_against_trained_ones() -> None:
    run = a_run()
    run.genesis()
    outcomes = (Disposition.TRAINED, Disposition.FILTERED, Disposition.TRAINED, Disposition.INCOMPLETE)
    groups = tuple(ClosedGroup(group_id=number, outcome=outcome) for number, outcome in enumerate(outcomes))
    run.ledger(LedgerKind.VERDICTS, 0, None, closed_groups=groups)

    assert measured(run).pass_share == 0.5


def test_what_no_device_shortens_is_the_mean_of_publishing_committing_and_checkpoints() -> None:
    run = a_run()
    run.genesis()
    run.step(1, reward=0.0, lags={}, publish_seconds=1.0)
    run.step(2, reward=0.0, lags={}, publish_seconds=2.0)

    assert measured(run).publish_seconds == pytest.approx(1.5)
