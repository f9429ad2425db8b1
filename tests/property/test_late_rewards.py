"""Late rewards in every order, with everybody killed: each trained sample has its first valid one, and the run ends."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.late_scorer import first_valid, rewards_named, rewards_that_may_count
from support.simulated_plan import Plan
from support.simulated_run import SimulatedRun

from consumers.ledger import read_ledger
from schemas import Disposition

if TYPE_CHECKING:
    from collections.abc import Callable


def a_round(run: SimulatedRun, seed: int) -> None:
    """Ordinary work without a reward being written."""
    run.now += 0.1 + 0.1 * (seed % 4)
    for number, worker in enumerate(list(run.workers)):
        worker.read()
        if seed & 1:
            worker.load()
        for which in range(worker.num_running):
            if (seed + number + which) % 3:
                worker.finish(which, run.score)
        run.beat(number)
    run.turn_dispatcher()
    run.turn_trainer()


def scores(run: SimulatedRun, seed: int) -> None:
    """Some rewards, of those that are due in any order."""
    if not run.broker.is_paused and run.scorer is not None:
        for _ in range(1 + seed % 4):
            run.scorer.write_one(seed * 7)


def score_ahead(run: SimulatedRun, seed: int) -> None:
    """Somebody writes a reward for an attempt that is not ordered yet, and perhaps never is."""
    if run.broker.is_paused or run.scorer is None or run.dispatcher is None:
        return
    next_group = run.dispatcher.state.groups.next_group_id
    ahead, attempt = ((0, 0), (1, 0), (4, 0), (-1, 1), (-2, 2), (6, 0), (7, 0), (8, 0))[seed % 8]
    turn_rewards = (0.5,) if seed % 3 == 0 else ()
    run.scorer.write(f"g{max(0, next_group + ahead)}.r{seed % 2}.a{attempt}", 500.0 + seed, turn_rewards)


def crowd(run: SimulatedRun, seed: int) -> None:
    """Somebody fills the room that a group has, before or after its own rewards."""
    if run.broker.is_paused or run.scorer is None or run.dispatcher is None:
        return
    group = max(0, run.dispatcher.state.groups.next_group_id - 1 + seed % 2)
    for number in range(5 + seed % 3):
        run.scorer.write(f"g{group}.r0.a{900 + number}", 1.0, (0.5,) * 6000)


def slow_down(run: SimulatedRun, seed: int) -> None:
    """Samples stay on their way for a while: their rewards may come first."""
    worker = run.worker(seed)
    if worker is not None:
        worker.producer.is_slow = not worker.producer.is_slow


def cut_commit(run: SimulatedRun, seed: int) -> None:
    run.broker.cut = "before" if seed % 2 else "after"


def sleep(run: SimulatedRun, seed: int) -> None:
    run.now += (0.5, 2.0, 5.0, 12.0)[seed % 4]


events: dict[str, Callable[[SimulatedRun, int], None]] = {
    "round": a_round,
    "scores": scores,
    "score_ahead": score_ahead,
    "crowd": crowd,
    "trainer": lambda run, _: run.turn_trainer(),
    "kill_trainer": lambda run, _: run.kill_trainer(),
    "start_trainer": lambda run, _: run.start_trainer(),
    "overtaken_trainer": lambda run, seed: run.turn_overtaken_trainer(seed),
    "cut_commit": cut_commit,
    "kill_dispatcher": lambda run, _: run.kill_dispatcher(),
    "kill_worker": lambda run, seed: run.kill_worker(seed // 2, arrives=bool(seed % 2)),
    "start_worker": lambda run, _: run.start_worker(),
    "slow_down": slow_down,
    "deliver": lambda run, seed: run.deliver(seed),
    "sample_again": lambda run, seed: run.send_sample_again(seed),
    "sleep": sleep,
}

plans = st.builds(
    Plan,
    late_rewards=st.just(True),
    reward_deadline_seconds=st.sampled_from([3.0, 10.0]),
    alpha=st.sampled_from([0.0, 1.0, 1.5]),
    groups_per_batch=st.integers(1, 2),
    group_size=st.just(2),
    redundant_replicas=st.integers(0, 1),
    num_steps=st.integers(2, 8),
    checkpoint_every_steps=st.sampled_from([1, 100]),
    filters=st.just({"filter_zero_signal": False}),
    snapshot_every_seconds=st.sampled_from([None, 0.0]),
)
histories = st.lists(
    st.tuples(
        st.sampled_from(["round", "round", "scores", "scores", "score_ahead", *events]), st.integers(0, 15)
    ),
    min_size=5,
    max_size=60,
)


checks = settings(
    database=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large], deadline=None
)


def come_in_any_order(plan: Plan, history: list[tuple[str, int]]) -> None:
    with SimulatedRun(plan) as run:
        for name, seed in history:
            events[name](run, seed)
            run.look()
        run.finish()
        assert_first_valid_ones(run)


@pytest.mark.timeout(600)
@settings(checks, derandomize=True, max_examples=25)
@given(plan=plans, history=histories)
def test_in_whatever_order_rewards_come_the_first_valid_one_is_trained(
    plan: Plan, history: list[tuple[str, int]]
) -> None:
    come_in_any_order(plan, history)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@settings(checks, max_examples=600)
@given(plan=plans, history=histories)
def test_in_whatever_other_order_rewards_come_the_first_valid_one_is_trained(
    plan: Plan, history: list[tuple[str, int]]
) -> None:
    come_in_any_order(plan, history)


early_plans = st.builds(
    Plan,
    late_rewards=st.just(True),
    reward_deadline_seconds=st.just(3.0),
    alpha=st.sampled_from([0.0, 1.0]),
    groups_per_batch=st.just(1),
    num_steps=st.just(8),
    filters=st.just({"filter_zero_signal": False}),
    snapshot_every_seconds=st.sampled_from([None, 0.0]),
)
early_events = {name: events[name] for name in ("score_ahead", "crowd", "kill_trainer", "cut_commit")}


early_histories = st.lists(
    st.tuples(
        st.sampled_from(["score_ahead", "score_ahead", "kill_trainer", *early_events]), st.integers(0, 15)
    ),
    min_size=10,
    max_size=30,
)


def come_ahead_of_everything(plan: Plan, history: list[tuple[str, int]]) -> None:
    """The run goes on all the time, and comes to where groups are that were named when they were beyond reach."""
    with SimulatedRun(plan) as run:
        for name, seed in history:
            early_events[name](run, seed)
            run.calm_round()
        run.finish()
        assert_first_valid_ones(run)


@pytest.mark.timeout(600)
@settings(checks, derandomize=True, max_examples=8)
@given(plan=early_plans, history=early_histories)
def test_rewards_ahead_of_everything_count_the_same_for_every_trainer(
    plan: Plan, history: list[tuple[str, int]]
) -> None:
    come_ahead_of_everything(plan, history)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@settings(checks, max_examples=150)
@given(plan=early_plans, history=early_histories)
def test_other_rewards_ahead_of_everything_count_the_same_for_every_trainer(
    plan: Plan, history: list[tuple[str, int]]
) -> None:
    come_ahead_of_everything(plan, history)


def assert_first_valid_ones(run: SimulatedRun) -> None:
    """What the ledger names, against the topics, worked out once more."""
    assert run.scorer is not None
    ledger = [entry.record for entry in read_ledger(run.broker, run.topics)]
    stored, named = rewards_that_may_count(run.scorer.records(), ledger, run.plan), rewards_named(ledger)
    positions = [record.reward_position for record in ledger]
    assert positions == sorted(positions)
    assert all(record.reward_mark <= record.reward_position for record in ledger)
    for record in ledger:
        for verdict in record.verdicts:
            sample = run.auditor.samples[(verdict.partition, verdict.offset)].sample
            if verdict.disposition is Disposition.TRAINED:
                assert sample is not None
                assert named[verdict.sample_id] == first_valid(stored[verdict.sample_id], sample)
