"""Where the time of a run went, from intervals that are known."""

from __future__ import annotations

import pytest
from support.builders import LedgerBuilder, a_sample

from benchmarks.harness.time_breakdown import (
    Generated,
    Trained,
    covered,
    generated,
    serving_delays,
    time_breakdown,
    trained,
)
from schemas import StepTimings, Timings


def test_overlapping_intervals_count_once_and_only_inside_the_window() -> None:
    assert covered([(0.0, 2.0), (1.0, 3.0), (5.0, 9.0)], (1.5, 6.0)) == pytest.approx(2.5)
    assert covered([], (0.0, 1.0)) == 0.0
    assert covered([(3.0, 4.0)], (0.0, 1.0)) == 0.0


def test_what_is_neither_generation_nor_training_is_left() -> None:
    rollouts = [
        Generated(interval=(8.0, 12.0), num_tokens=100),
        Generated(interval=(12.0, 16.0), num_tokens=60),
    ]
    steps = [
        Trained(interval=(7.0, 9.0), committed=10.0, num_tokens=70),
        Trained(interval=(15.0, 18.0), committed=20.0, num_tokens=90),
    ]
    use = time_breakdown(rollouts, steps)
    assert (use.seconds, use.num_steps) == (10.0, 1)
    assert use.generating_seconds == pytest.approx(6.0)
    assert use.training_seconds == pytest.approx(3.0)
    assert use.neither_seconds == pytest.approx(2.0)
    assert use.tokens_generated == pytest.approx(50 + 60)
    assert use.tokens_trained == 90


def test_a_rollout_ends_where_its_reward_begins() -> None:
    sample = a_sample(timings=Timings(generation_seconds=4.0, reward_seconds=0.5), wasted_tokens=2)
    found = generated(sample, 20.0)
    assert found.interval == (15.5, 19.5)
    assert found.num_tokens == sample.num_tokens + 2


def test_a_step_was_trained_before_its_weights_were_published() -> None:
    ledger = LedgerBuilder()
    step = ledger.step(timings=StepTimings(train_seconds=3.0, publish_seconds=1.0), num_tokens=70)
    assert trained(step, 20.0) == Trained(interval=(16.0, 19.0), committed=20.0, num_tokens=70)
    assert trained(ledger.records[0], 20.0) is None


def test_a_version_that_was_skipped_is_served_by_the_next() -> None:
    served = [(1, 10.5), (3, 12.0), (3, 13.0)]
    assert serving_delays({1: 10.0, 2: 11.0, 3: 11.5, 4: 13.0}, served) == pytest.approx([0.5, 1.0, 0.5])
