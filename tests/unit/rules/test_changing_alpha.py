"""Dispatcher and trainer under an alpha that changes with every step, by their own rules.

The loop has no broker and no clock: what the dispatcher would issue is started, ended, judged and trained in an order
that hypothesis chooses, with any alpha after each step. The ledger's fold refuses what is trained or judged twice.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.builders import LedgerBuilder, a_header, a_task, freshness_config, groups_config, num_partitions

from producers.dispatcher.group_tracker import GroupTracker
from rollog.rules.admission import max_open_groups
from rollog.rules.alpha_control import alpha_of_step
from rollog.rules.freshness import lag_bound, lag_quota, min_version
from schemas import Disposition, Status, sample_id
from trainer.buffer.sample_buffer import SampleBuffer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from producers.dispatcher.group_tracker import Wanted
    from schemas import LedgerRecord

num_steps = 8
capacity = 12


@dataclass
class Running:
    """A task at a worker; `version` is the one it began with."""

    wanted: Wanted
    task_id: str
    min_version: int
    version: int | None = None


@dataclass
class Loop:
    """Dispatcher, workers and trainer with nothing between them but the ledger."""

    alphas: Sequence[float]
    redundant: int = 0
    drop: bool = False
    served: int = 0
    running: list[Running] = field(default_factory=list)
    num_tasks: int = 0
    ends: Counter[int] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.groups = groups_config(redundant_groups=self.redundant, redundant_replicas=self.redundant)
        action = "drop" if self.drop else "regenerate"
        freshness = freshness_config(action=action, patience_seconds=1e9)
        self.ledger = LedgerBuilder(alpha=self.alphas[0])
        self.tracker = GroupTracker(self.ledger.state, self.groups, freshness, num_steps)
        self.buffer = SampleBuffer(self.ledger.state, self.groups, freshness)
        self.lacking: set[int] = set()

    @property
    def version(self) -> int:
        return self.ledger.state.version

    def issue(self) -> None:
        """What open groups lack, oldest first, then new groups, while there are slots."""
        self.lacking.update(self.tracker.take_changed())
        for group in sorted(self.lacking):
            for wanted in list(self.tracker.wanted(group)):
                if len(self.running) >= capacity:
                    return
                self._send(wanted)
            self.lacking.discard(group)
        while self.tracker.may_open() and len(self.running) < capacity:
            bound = max_open_groups(
                alpha=self.ledger.state.alpha,
                groups_per_batch=self.groups.groups_per_batch,
                steps_left=num_steps - self.version,
                redundant_groups=self.redundant,
                num_early_filtered=self.tracker.num_early_filtered,
            )
            for wanted in list(self.tracker.first_attempts(self.tracker.next_group_id)):
                self._send(wanted)
            assert self.tracker.num_open <= bound

    def start(self) -> None:
        """Workers load the newest version and begin what they may."""
        self.served = self.version
        self.begin()

    def begin(self) -> None:
        """Workers begin what they may with the version they have."""
        for task in self.running:
            if task.version is None and task.min_version <= self.served:
                task.version = self.served

    def end(self, number: int, *, fails: bool = False) -> None:
        """One of the tasks that were begun ends."""
        begun = [task for task in self.running if task.version is not None]
        if not begun:
            return
        task = begun[number % len(begun)]
        self.running.remove(task)
        wanted = task.wanted
        partition = wanted.group_id % num_partitions
        identity = sample_id(wanted.group_id, wanted.replica, wanted.attempt)
        values: dict[str, Any] = {"sample_id": identity, "attempt": wanted.attempt, "task_id": task.task_id}
        if fails and wanted.attempt == 0:
            values |= {"status": Status.FAILED, "segments": (), "first_version": None, "reward": None}
        elif wanted.group_id % 5 == 4:
            values["reward"] = 1.0
        header = a_header(
            wanted.group_id,
            wanted.replica,
            offset=self.ends[partition],
            version=task.version or 0,
            **values,
        )
        self.ends[partition] += 1
        self.tracker.ended(header)
        self.buffer.add(header)

    def turn(self) -> None:
        """The trainer takes one step, or publishes verdicts."""
        batch = self.buffer.next_batch(0.0) if self.version < num_steps else None
        if batch is None and not self.buffer.has_pending:
            return
        verdicts, closed = self.buffer.verdicts_for(batch or ())
        if batch is None:
            self._committed(self.ledger.verdicts(verdicts, closed))
            return
        in_force = self.ledger.state.alpha
        lags = [group.lag for group in batch]
        assert max(lags) <= lag_bound(in_force)
        quota = lag_quota(in_force, self.groups.groups_per_batch)
        assert quota is None or lags.count(lag_bound(in_force)) <= quota
        following = self.alphas[min(self.version + 1, len(self.alphas) - 1)]
        self._committed(self.ledger.step(verdicts, closed, alpha=following))

    def drain(self) -> None:
        """Everybody does what there is to do until the last step is taken."""
        for _ in range(40 * num_steps):
            if self.version >= num_steps:
                return
            self.turn()
            self.issue()
            self.start()
            self.end(0)
        raise AssertionError(f"stuck at version {self.version} of {num_steps}: {self.running}")

    def _send(self, wanted: Wanted) -> None:
        self.num_tasks += 1
        state = self.ledger.state
        needed = min_version(
            state.version,
            wanted.num_groups_ahead,
            self.groups.groups_per_batch,
            state.alpha,
            protected=wanted.protected,
        )
        task_id = f"1.{self.num_tasks}"
        self.tracker.issued(a_task(wanted.group_id, wanted.replica, attempt=wanted.attempt, task_id=task_id))
        self.running.append(Running(wanted, task_id, needed))

    def _committed(self, record: LedgerRecord) -> None:
        self.buffer.committed(record)
        surplus = set(self.tracker.judged(record))
        self.running = [task for task in self.running if task.task_id not in surplus]


def check(loop: Loop) -> None:
    """I2 and I3 on the ledger as written."""
    trained: Counter[tuple[int, int]] = Counter()
    for before, record in pairwise(loop.ledger.records):
        for verdict in record.verdicts:
            if verdict.disposition is Disposition.TRAINED:
                trained[verdict.group_id, verdict.replica] += 1
                assert verdict.lag is not None
                assert verdict.lag <= lag_bound(before.alpha)
    assert set(trained.values()) == {1}
    assert len(trained) == num_steps * loop.groups.groups_per_batch * loop.groups.group_size


alpha_values = st.lists(st.sampled_from([0.0, 0.25, 0.5, 1.0, 1.5, 2.0, 3.0]), min_size=1, max_size=num_steps)
turns = st.lists(
    st.one_of(
        st.sampled_from(["turn", "issue", "start", "begin"]).map(lambda name: (name, 0)),
        st.tuples(st.sampled_from(["end", "fail"]), st.integers(0, capacity)),
    ),
    max_size=120,
)


@given(alphas=alpha_values, actions=turns, redundant=st.integers(0, 1), drop=st.booleans())
def test_whatever_alpha_does_nothing_over_it_is_trained_and_the_run_ends(
    alphas: list[float], actions: list[tuple[str, int]], redundant: int, drop: bool
) -> None:
    loop = Loop(alphas, redundant=redundant, drop=drop)
    for name, number in actions:
        match name:
            case "turn":
                loop.turn()
            case "issue":
                loop.issue()
            case "start":
                loop.start()
            case "begin":
                loop.begin()
            case _:
                loop.end(number, fails=name == "fail")
    loop.drain()
    check(loop)


@pytest.mark.parametrize("every", [2, 3])
def test_at_a_barrier_everything_under_way_begins_anew_and_nothing_waits_for_ever(every: int) -> None:
    freshness = freshness_config(alpha=2.0, barrier_every_steps=every)
    loop = Loop([alpha_of_step(number, (), freshness) for number in range(1, num_steps + 1)])
    loop.issue()
    loop.start()
    loop.drain()
    check(loop)
    barriers = [
        verdict.lag
        for record in loop.ledger.records
        if record.version % every == 0
        for verdict in record.verdicts
        if verdict.disposition is Disposition.TRAINED
    ]
    assert barriers
    assert set(barriers) == {0}
    assert loop.ledger.state.num_by_disposition[Disposition.STALE] > 0


def test_a_lowered_alpha_makes_what_is_ready_stale_and_has_it_generated_again() -> None:
    loop = Loop([2.0, 0.0])
    loop.issue()
    loop.start()
    for _ in range(capacity):
        loop.end(0)
    assert loop.buffer.num_ready > loop.groups.groups_per_batch
    loop.turn()
    loop.turn()
    stale = loop.ledger.state.num_by_disposition[Disposition.STALE]
    assert stale > 0
    loop.issue()
    again = [task.wanted for task in loop.running if task.wanted.attempt == 1]
    assert len(again) == stale
    assert {task.min_version for task in loop.running if task.wanted.attempt == 1} == {1}
    loop.drain()
    check(loop)
