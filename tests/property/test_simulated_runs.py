"""Whole runs under generated misfortune: whatever the order of events, the invariants hold and the run ends.

The real dispatcher, worker sessions and trainer run over the broker in memory, in one thread and simulated time.
After every event an independent auditor looks at all that was written (I1, I2, I3, I5, I9); after the last one
nothing bad happens any more, and the run must close with every record disposed of.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from support.simulated_plan import Plan
from support.simulated_run import SimulatedRun

from rollog.kernel.errors import DataError
from rollog.settings.run import LastBatch
from schemas import CancelReason, Disposition

Event = Callable[[SimulatedRun, int], None]


def a_round(run: SimulatedRun, seed: int) -> None:
    """Ordinary work: everybody takes a turn, some rollouts end, time goes on."""
    run.now += 0.1 + 0.1 * (seed % 4)
    for number, worker in enumerate(list(run.workers)):
        worker.read()
        if seed & 1:
            worker.load()
        for which in range(worker.num_running):
            if (seed + number + which) % 3:
                worker.finish(which, run.score)
            elif seed & 4:
                worker.generate(which)
        run.beat(number)
    run.turn_dispatcher()
    run.turn_trainer()


def a_round_with_a_straggler(run: SimulatedRun, seed: int) -> None:
    """All that runs ends but the oldest rollout of one worker, unless it is interrupted; every version is loaded."""
    run.now += 0.1
    for number, worker in enumerate(list(run.workers)):
        worker.read()
        worker.load()
        worker.end_interrupted(run.score)
        for which in reversed(range(number == seed % len(run.workers), worker.num_running)):
            worker.finish(which, run.score)
        run.beat(number)
    run.turn_dispatcher()
    run.turn_trainer()


def reload(run: SimulatedRun, seed: int) -> None:
    worker = run.worker(seed // 2)
    if worker is not None:
        worker.load(succeeds=seed % 4 != 3)


def fetch(run: SimulatedRun, seed: int) -> None:
    """A fetch ends, and the version is swapped in later."""
    worker = run.worker(seed // 2)
    if worker is not None:
        worker.fetch(succeeds=seed % 4 != 3)


def finish_rollout(run: SimulatedRun, seed: int) -> None:
    """A rollout ends, fast or late, with a reward of its own or a failure."""
    worker = run.worker(seed)
    if worker is not None:
        rewards = (0.0, 1.0, 1.0, None)
        worker.finish(seed // 2, lambda _replica: rewards[seed % 4])


def generate(run: SimulatedRun, seed: int) -> None:
    """The tokens of a rollout are there, and its slot may be free; it is scored until it ends."""
    worker = run.worker(seed)
    if worker is not None:
        worker.generate(seed // 2)


def read(run: SimulatedRun, seed: int) -> None:
    worker = run.worker(seed)
    if worker is not None:
        worker.read(max_records=1 + seed % 3)


def slow_down(run: SimulatedRun, seed: int) -> None:
    """What a role sends stays on its way for a while."""
    worker = run.worker(seed // 2)
    producer = run.dispatcher_producer if seed % 2 or worker is None else worker.producer
    if producer is not None:
        producer.is_slow = not producer.is_slow


def take_over(run: SimulatedRun, seed: int) -> None:
    """Another dispatcher takes over, often while the last words of the one before are still on their way."""
    overtaken = run.dispatcher_producer
    if overtaken is not None and seed % 4:
        overtaken.is_slow = True
        for number, worker in enumerate(list(run.workers)):
            worker.finish(seed, run.score)
            run.beat(number)
        run.turn_dispatcher()
        run.turn_trainer()
        run.turn_dispatcher()
    run.start_dispatcher()
    if overtaken is not None and seed % 4 > 1:
        overtaken.flush(0.0)
    if seed % 2:
        run.turn_overtaken_dispatcher(seed)


def cut_commit(run: SimulatedRun, seed: int) -> None:
    """The trainer dies in its next commit, before or after it took effect."""
    run.broker.cut = "before" if seed % 2 else "after"


def sleep(run: SimulatedRun, seed: int) -> None:
    """Time passes, up to more than a lease."""
    run.now += (0.2, 0.8, 1.5, 3.5)[seed % 4]


ordinary: dict[str, Event] = {
    "round": a_round,
    "straggler": a_round_with_a_straggler,
    "dispatcher": lambda run, _: run.turn_dispatcher(),
    "trainer": lambda run, _: run.turn_trainer(),
    "read": read,
    "fetch": fetch,
    "reload": reload,
    "generate": generate,
    "finish": finish_rollout,
    "beat": lambda run, seed: run.beat(seed),
    "start_worker": lambda run, _: run.start_worker(),
    "deliver": lambda run, seed: run.deliver(seed),
    "sleep": sleep,
}
misfortunes: dict[str, Event] = {
    "kill_worker": lambda run, seed: run.kill_worker(seed // 2, arrives=bool(seed % 2)),
    "dismiss_worker": lambda run, seed: run.dismiss_worker(seed),
    "take_over": take_over,
    "kill_dispatcher": lambda run, _: run.kill_dispatcher(),
    "overtaken_dispatcher": lambda run, seed: run.turn_overtaken_dispatcher(seed),
    "start_trainer": lambda run, _: run.start_trainer(),
    "kill_trainer": lambda run, _: run.kill_trainer(),
    "cut_commit": cut_commit,
    "suspend_trainer": lambda run, _: run.suspend_trainer(),
    "overtaken_trainer": lambda run, seed: run.turn_overtaken_trainer(seed),
    "slow_down": slow_down,
    "sample_again": lambda run, seed: run.send_sample_again(seed),
    "task_again": lambda run, seed: run.send_task_again(seed),
    "garbage": lambda run, seed: run.send_garbage(seed),
    "pause": lambda run, _: run.pause(),
    "resume": lambda run, _: run.resume(),
}

filters = st.sampled_from(
    [
        {},
        {},
        {},
        {},
        {"pass_rate_bounds": (0.25, 0.6)},
        {"filter_zero_signal": False, "pass_rate_bounds": (0.25, 1.0), "pass_reward": 0.5},
        {"response_tokens_mean_bounds": (2, 3)},
        {"max_truncated_share": 0.25},
        {"pass_rate_bounds": (0.0, 0.5), "response_tokens_mean_bounds": (0, 3), "max_truncated_share": 0.5},
    ]
)

plans = st.builds(
    Plan,
    alpha=st.sampled_from([0.0, 0.5, 1.0, 1.5, 2.0]),
    groups_per_batch=st.integers(1, 3),
    group_size=st.integers(2, 3),
    redundant_replicas=st.integers(0, 1),
    redundant_groups=st.integers(0, 1),
    num_steps=st.integers(2, 4),
    num_epochs=st.sampled_from([None, None, 1, 2]),
    num_prompts=st.integers(3, 6),
    last_batch=st.sampled_from(LastBatch),
    action=st.sampled_from(["regenerate", "regenerate", "drop"]),
    patience_seconds=st.sampled_from([0.0, 5.0]),
    replicate=st.sampled_from([True, True, False]),
    reload=st.sampled_from(["keep", "keep", "drain", "abort"]),
    checkpoint_every_steps=st.sampled_from([1, 100]),
    poisoned_prompt=st.sampled_from([None, None, 0]),
    filters=filters,
    looks_in_flight=st.sampled_from([0, 1, 2, 5, None]),
    snapshot_every_seconds=st.sampled_from([None, 0.0, 2.0]),
)


@st.composite
def histories(draw: st.DrawFn) -> list[tuple[str, int]]:
    """Ordinary events, mixed with misfortunes of a few kinds at a time."""
    kinds = draw(st.lists(st.sampled_from(list(misfortunes)), min_size=1, max_size=4, unique=True))
    frequent = (
        ["round"] * 3
        + ["straggler"] * draw(st.sampled_from([0, 0, 6]))
        + [*ordinary]
        + kinds * draw(st.integers(1, 6))
    )
    return draw(st.lists(st.tuples(st.sampled_from(frequent), st.integers(0, 15)), min_size=5, max_size=70))


def live_through(
    run: SimulatedRun, history: list[tuple[str, int]], *, compare_every: int | None = None
) -> None:
    events = ordinary | misfortunes
    for number, (name, seed) in enumerate(history):
        events[name](run, seed)
        run.look()
        if compare_every is not None and number % compare_every == 0:
            run.compare_snapshots()
    run.finish()


common = settings(
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


alphas_of_stragglers = st.sampled_from([0.0, 0.5, 1.0])
half_a_group_twice = [
    *[("round", 3)] * 2,
    *[(name, 0) for name in ("finish", "trainer", "sample_again", "trainer", "dispatcher", "read", "beat")]
    * 8,
]


@pytest.mark.timeout(300)
@settings(common, derandomize=True, max_examples=40)
@example(plan=Plan(groups_per_batch=1), history=half_a_group_twice)
@given(plan=plans, history=histories())
def test_whatever_happens_the_invariants_hold_and_the_run_ends(
    plan: Plan, history: list[tuple[str, int]]
) -> None:
    with SimulatedRun(plan) as run:
        live_through(run, history)


@pytest.mark.timeout(300)
@settings(common, derandomize=True, max_examples=20)
@given(plan=plans, history=histories(), alpha=alphas_of_stragglers, straggler=st.integers(0, 3))
def test_whatever_happens_to_a_run_with_stragglers_the_invariants_hold_and_it_ends(
    plan: Plan, history: list[tuple[str, int]], alpha: float, straggler: int
) -> None:
    live_with_a_straggler(plan, history, alpha, straggler)


def live_with_a_straggler(plan: Plan, history: list[tuple[str, int]], alpha: float, straggler: int) -> None:
    """Between any two events all that runs ends, but one rollout of the worker of that number."""
    quick = replace(
        plan, alpha=alpha, groups_per_batch=1, group_size=2, redundant_groups=1, num_steps=6, filters={}
    )
    under_way = [("start_worker", 0), *[("straggler", straggler)] * 5]
    between = [event for each in history[:30] for event in (each, ("straggler", straggler))]
    with SimulatedRun(quick) as run:
        live_through(run, under_way + between)


several_seats = st.integers(2, 3)
episodes_of_a_group = st.integers(1, 2)


@pytest.mark.timeout(300)
@settings(common, derandomize=True, max_examples=20)
@given(plan=plans, history=histories(), seats=several_seats, num_episodes=episodes_of_a_group)
def test_whatever_happens_to_a_run_of_several_seats_the_invariants_hold_and_it_ends(
    plan: Plan, history: list[tuple[str, int]], seats: int, num_episodes: int
) -> None:
    live_in_seats(plan, history, seats, num_episodes)


def live_in_seats(plan: Plan, history: list[tuple[str, int]], seats: int, num_episodes: int) -> None:
    """No task reaches beyond the episode of its first replica, whatever was made again; first ones have it whole."""
    seated = replace(
        plan,
        seats=seats,
        group_size=seats * num_episodes,
        redundant_replicas=seats * plan.redundant_replicas,
    )
    with SimulatedRun(seated) as run:
        live_through(run, history, compare_every=8 if seated.snapshot_every_seconds is not None else None)
        for task in run.auditor.tasks.values():
            if plan.replicate or task.attempt:
                last = task.replica + task.num_replicas - 1
                assert task.replica // seats == last // seats
            if plan.replicate and not task.attempt:
                assert (task.replica % seats, task.num_replicas) == (0, seats)


@pytest.mark.timeout(300)
@settings(common, derandomize=True, max_examples=12)
@given(plan=plans, history=histories(), seconds=st.sampled_from([0.0, 0.0, 1.0]))
def test_whatever_happens_a_snapshot_and_what_follows_it_say_what_the_whole_log_says(
    plan: Plan, history: list[tuple[str, int]], seconds: float
) -> None:
    with SimulatedRun(replace(plan, snapshot_every_seconds=seconds)) as run:
        live_through(run, history, compare_every=4)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@settings(common, max_examples=1000)
@given(plan=plans, history=histories(), seconds=st.sampled_from([0.0, 0.0, 1.0]))
def test_whatever_else_happens_a_snapshot_and_what_follows_it_say_what_the_whole_log_says(
    plan: Plan, history: list[tuple[str, int]], seconds: float
) -> None:
    with SimulatedRun(replace(plan, snapshot_every_seconds=seconds)) as run:
        live_through(run, history, compare_every=1)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@settings(common, max_examples=5000)
@given(plan=plans, history=histories())
def test_whatever_else_happens_the_invariants_hold_and_the_run_ends(
    plan: Plan, history: list[tuple[str, int]]
) -> None:
    with SimulatedRun(plan) as run:
        live_through(run, history)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@settings(common, max_examples=1000)
@given(plan=plans, history=histories(), alpha=alphas_of_stragglers, straggler=st.integers(0, 3))
def test_whatever_else_happens_to_a_run_with_stragglers_the_invariants_hold_and_it_ends(
    plan: Plan, history: list[tuple[str, int]], alpha: float, straggler: int
) -> None:
    live_with_a_straggler(plan, history, alpha, straggler)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@settings(common, max_examples=1000)
@given(plan=plans, history=histories(), seats=several_seats, num_episodes=episodes_of_a_group)
def test_whatever_else_happens_to_a_run_of_several_seats_the_invariants_hold_and_it_ends(
    plan: Plan, history: list[tuple[str, int]], seats: int, num_episodes: int
) -> None:
    live_in_seats(plan, history, seats, num_episodes)


@pytest.mark.parametrize(
    ("action", "outcome"), [("regenerate", Disposition.TRAINED), ("drop", Disposition.INCOMPLETE)]
)
def test_a_rollout_that_can_only_end_stale_is_taken_back_before_its_end(
    action: str, outcome: Disposition
) -> None:
    plan = Plan(alpha=0.0, groups_per_batch=1, redundant_groups=1, action=action)
    with SimulatedRun(plan) as run:
        live_through(run, [("start_worker", 0), *[("straggler", 0)] * 12])
        assert run.auditor.tasks["1.2"].group_id == 0
        assert run.auditor.cancelled["1.2"] is CancelReason.STALE
        assert run.auditor.outcomes[0] is outcome
        attempts = [task.attempt for task in run.auditor.tasks.values() if task.group_id == 0]
        assert max(attempts) == (1 if action == "regenerate" else 0)


@settings(common, derandomize=True, max_examples=12)
@given(plan=plans, history=histories(), reward=st.sampled_from([1.0, None]))
def test_a_run_that_can_train_nothing_is_given_up(
    plan: Plan, history: list[tuple[str, int]], reward: float | None
) -> None:
    # With equal rewards nothing has a signal; without that filter some plans would train them.
    filters = {**plan.filters, "filter_zero_signal": True}
    hopeless = replace(plan, max_untrained_in_a_row=4, num_epochs=None, filters=filters)
    without_rewards = [(name, seed) for name, seed in history if name != "finish"]
    with SimulatedRun(hopeless) as run:
        run.rewards_vary, run.same_reward = False, reward
        with pytest.raises(DataError, match="max_untrained_in_a_row"):
            live_through(run, without_rewards)
        assert set(run.auditor.outcomes.values()) <= {Disposition.FILTERED, Disposition.INCOMPLETE}
        assert not run.auditor.ledger.trained


def test_while_no_trainer_runs_what_is_open_stays_bounded_however_much_is_filtered() -> None:
    plan = Plan(alpha=1.0, groups_per_batch=2, num_steps=3)
    with SimulatedRun(plan) as run:
        run.rewards_vary, run.same_reward = False, 1.0
        run.calm_round()
        run.kill_trainer()
        for _ in range(100):
            run.producers_round()
        assert run.dispatcher is not None
        assert run.dispatcher.state.groups.num_open == 2 * 4


def test_what_an_overtaken_dispatcher_says_is_lost_of_a_task_behind_the_fence_is_nobodys() -> None:
    plan = Plan(
        alpha=0.0,
        groups_per_batch=1,
        group_size=2,
        redundant_replicas=0,
        redundant_groups=0,
        num_steps=2,
        num_prompts=3,
    )
    history = [("round", 0), ("slow_down", 1), ("round", 1), ("dismiss_worker", 0), ("take_over", 2)]
    with SimulatedRun(plan) as run:
        live_through(run, history)
        assert run.auditor.nobodys
        assert all("stands behind the fence" in verdict.reason for verdict in run.auditor.nobodys)
