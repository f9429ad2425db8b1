"""The average time of a training step, by playing a workload through on recorded rollout times.

Discrete events without randomness: rollouts start in the order in which they are issued, each on the slot that is
free first; floor((1 + alpha) N) are issued and not yet trained at any time; a step takes the first N that finish,
and its commit issues N more. Cancelling, protection and reloading are not in it.
"""

from __future__ import annotations

import math
from heapq import heappop, heappush
from itertools import cycle, islice
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rollog.planning.sizing import Workload

num_warm_up_steps = 10
num_measured_steps = 40

_num_intervals = 8


def simulated_step_seconds(durations: Sequence[float], workload: Workload, num_train_devices: int) -> float:
    """Mean seconds of a step after warming up, with rollouts as long as `durations`, over and over again.

    The stage lengths are the workload's, its mean and longest rollout aside. Raises ValueError without durations.
    """
    if not durations:
        raise ValueError("no durations to simulate with: at least one rollout must have finished")
    num_slots = (workload.num_devices - num_train_devices) * workload.slots_per_device
    num_rollouts = round(workload.num_rollouts)
    train_seconds = workload.training * workload.num_devices / num_train_devices
    source = cycle(durations)
    free_at, finished_at = [0.0] * num_slots, list[float]()
    now, warm = 0.0, 0.0
    num_to_issue = math.floor((1 + workload.alpha) * num_rollouts)
    for step in range(num_warm_up_steps + num_measured_steps):
        for duration in islice(source, num_to_issue):
            end = max(now, heappop(free_at)) + duration
            heappush(free_at, end)
            heappush(finished_at, end)
        ready_at = max(heappop(finished_at) for _ in range(num_rollouts))
        now = max(now, ready_at) + train_seconds
        num_to_issue = num_rollouts
        warm = now if step + 1 == num_warm_up_steps else warm
    return (now - warm) / num_measured_steps


def best_simulated_split(durations: Sequence[float], workload: Workload) -> tuple[int, float]:
    """The number of training devices with the shortest simulated step, and that step's seconds.

    Step time falls with the trainer's devices until rollouts hold it up, then rises; so ever narrower intervals
    around the best are looked at.
    """
    low, high = 1, workload.num_devices - 1
    while high - low > _num_intervals:
        width = (high - low) / _num_intervals
        numbers = [low + round(width * number) for number in range(_num_intervals + 1)]
        place = min(
            range(len(numbers)), key=lambda index: simulated_step_seconds(durations, workload, numbers[index])
        )
        low, high = numbers[max(place - 1, 0)], numbers[min(place + 1, _num_intervals)]
    seconds = {number: simulated_step_seconds(durations, workload, number) for number in range(low, high + 1)}
    best = min(seconds, key=lambda number: (seconds[number], number))
    return best, seconds[best]
