"""Dispatcher and worker session in simulated time: how busy the engine's slots are while a judge takes its time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from support.builders import groups_config
from support.dispatcher_driver import DispatcherDriver, max_workers, num_partitions
from support.session_driver import a_notice
from support.simulated_worker import SimulatedWorker

from producers.rollout.pace import HeartbeatPace
from producers.rollout.tasks import TaskLimits
from rollog.settings.generation import DispatchConfig, RewardConfig

if TYPE_CHECKING:
    from producers.dispatcher.dispatcher import Dispatcher
    from producers.rollout.outcomes import Replica

num_slots = 8
reward_seconds = 1.0
step_seconds = 0.01
dispatcher_steps, reader_steps, tick_steps = 6, 4, 5
"""Steps between two looks: what the loops wait for, and a poll."""


def rollout_seconds(number: int) -> float:
    """0.15 s in the mean: 53 rollouts a second fill eight slots."""
    return 0.1 + 0.02 * (number % 6)


class World:
    """One dispatcher and one worker, whose rollouts and rewards take their time."""

    def __init__(self, max_in_flight: int) -> None:
        reward = RewardConfig(function="rewards:score", max_in_flight=max_in_flight)
        self.driver = DispatcherDriver(
            num_prompts=400,
            groups=groups_config(groups_per_batch=400, group_size=4),
            reward=reward,
            dispatch=DispatchConfig(),
        )
        self.driver.publish_ledger()
        self.driver.send_weights(a_notice(0))
        self.dispatcher: Dispatcher = self.driver.dispatcher()
        self.worker = SimulatedWorker(
            self.driver.broker,
            self.driver.topics,
            "worker-1",
            capacity=num_slots,
            reward_function="rewards:score",
            limits=TaskLimits(num_sample_partitions=num_partitions, num_replicas=4),
            clock=lambda: self.driver.now,
            num_task_partitions=max_workers,
            max_scoring=max_in_flight,
        )
        self.worker.load()
        self.pace = HeartbeatPace(every_seconds=0.5, capacity=num_slots)
        self.generated_at: dict[str, float] = {}
        self.scored_at: dict[str, float] = {}
        self.most_open = 0

    def busy_share(self, *, begin: float, end: float) -> float:
        """Share of the slots in which tokens are made, between two moments."""
        shares = []
        for step in range(round(end / step_seconds)):
            self.driver.now = step * step_seconds
            self._step(step)
            if self.driver.now >= begin:
                shares.append(self.worker.session.num_generating / num_slots)
        return sum(shares) / len(shares)

    def _step(self, step: int) -> None:
        now = self.driver.now
        if step % dispatcher_steps == 0:
            self.dispatcher.run_once()
        if step % reader_steps == 0:
            self.worker.read()
        self._end_what_is_due(now)
        if step % tick_steps == 0 and self.pace.is_due(now, self.worker.session.num_scoring):
            self.pace.told(now, self.worker.session.num_scoring)
            self.worker.beat()
        self.most_open = max(self.most_open, len(self.dispatcher.state.credits))

    def _end_what_is_due(self, now: float) -> None:
        for task_id in self.worker.started:
            if task_id not in self.generated_at:
                self.generated_at[task_id] = now + rollout_seconds(len(self.generated_at))
        for task_id in self.worker.started:
            if task_id in self.worker.generating:
                if self.generated_at[task_id] <= now:
                    self.worker.generate(self.worker.generating.index(task_id))
                    self.scored_at[task_id] = now + reward_seconds
            elif self.scored_at[task_id] <= now:
                self.worker.finish(self.worker.started.index(task_id), reward_of)


def reward_of(replica: Replica) -> float:
    return float(replica.number % 2)


def test_a_reward_of_a_second_with_64_in_flight_keeps_the_slots_busy() -> None:
    world = World(max_in_flight=64)
    assert world.busy_share(begin=2.0, end=8.0) >= 0.95
    assert world.most_open <= num_slots + DispatchConfig().prefetch_tasks + 64


@pytest.mark.parametrize(("max_in_flight", "rollouts_a_second"), [(1, 9 / 1.15), (16, 24 / 1.15)])
def test_fewer_scoring_places_than_the_engine_needs_bound_it(
    max_in_flight: int, rollouts_a_second: float
) -> None:
    world = World(max_in_flight)
    share = world.busy_share(begin=2.0, end=6.0)
    assert share == pytest.approx(rollouts_a_second * 0.15 / num_slots, rel=0.1)
    assert world.most_open <= num_slots + DispatchConfig().prefetch_tasks + max_in_flight
