"""The split of the devices with the shortest step, found by playing the protocol at some of the splits.

The step falls with the trainer's devices until rollouts hold it up, then it rises; so ever narrower intervals around
the best are looked at, and splits that cannot be better than it are passed over.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rollog.planning.protocol_simulation import ProtocolRun, step_seconds

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rollog.planning.protocol_simulation import Durations, GroupRules
    from rollog.planning.sizing import Workload

_num_intervals = 6
_num_rollouts = 3072
"""Rollouts made in the measured steps of one play: the fewer a step has, the more its time varies."""
_least_steps, _most_steps = 10, 128


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayedSplit:
    """A split into whole devices and the mean step it gives."""

    num_train_devices: int
    num_rollout_devices: int
    step_seconds: float


class SplitPlayer:
    """Plays the protocol at splits of one workload's devices, each of them once."""

    def __init__(
        self, durations: Durations, workload: Workload, rules: GroupRules, *, publish_seconds: float = 0.0
    ) -> None:
        """`publish_seconds` are those of a step that no device shortens: writing, committing and announcing it."""
        self._durations = durations
        self._workload = workload
        self._rules = rules
        self._publish_seconds = publish_seconds
        self._played: dict[int, float] = {}

    def best(self) -> PlayedSplit:
        """The best split found. Raises ValueError without durations."""
        low, high = 1, self._workload.num_devices - 1
        while high - low > _num_intervals:
            width = (high - low) / _num_intervals
            numbers = [low + round(width * number) for number in range(_num_intervals + 1)]
            self._play_promising(numbers)
            place = min(range(len(numbers)), key=lambda index: self._bound_or_played(numbers[index]))
            low, high = numbers[max(place - 1, 0)], numbers[min(place + 1, _num_intervals)]
        self._play_promising(range(low, high + 1))
        return self.at(min(self._played, key=lambda number: (self._played[number], number)))

    def at(self, num_train_devices: int) -> PlayedSplit:
        """What a split gives. Raises ValueError without durations."""
        if num_train_devices not in self._played:
            self._played[num_train_devices] = self._play(num_train_devices)
        return PlayedSplit(
            num_train_devices=num_train_devices,
            num_rollout_devices=self._workload.num_devices - num_train_devices,
            step_seconds=self._played[num_train_devices],
        )

    def taking_turns(self) -> float:
        """Seconds of a synchronous step in which all devices generate, then all of them train."""
        workload = self._workload
        return self._step_seconds(workload.num_devices, self._train_seconds(workload.num_devices), alpha=0.0)

    def _play_promising(self, numbers: Sequence[int]) -> None:
        for number in sorted(numbers, key=self._bound):
            if not self._played or self._bound(number) < min(self._played.values()):
                self.at(number)

    def _bound_or_played(self, number: int) -> float:
        return self._played.get(number, math.inf)

    def _bound(self, number: int) -> float:
        """No step is shorter: neither stage can be left out, and at alpha 0 they take turns."""
        workload = self._workload
        num_slots = (workload.num_devices - number) * workload.slots_per_device
        rollouts = workload.batch * workload.mean_seconds / (num_slots * self._rules.pass_share)
        train = self._train_seconds(number)
        return max(rollouts, train) if workload.alpha > 0 else rollouts + train

    def _play(self, num_train_devices: int) -> float:
        return self._step_seconds(
            self._workload.num_devices - num_train_devices,
            self._train_seconds(num_train_devices),
            alpha=self._workload.alpha,
        )

    def _train_seconds(self, num_train_devices: int) -> float:
        workload = self._workload
        return workload.training * workload.num_devices / num_train_devices + self._publish_seconds

    def _step_seconds(self, num_rollout_devices: int, train_seconds: float, *, alpha: float) -> float:
        workload = self._workload
        num_rollouts = workload.batch / self._rules.pass_share
        num_warm_up = math.ceil(alpha) + 4
        return step_seconds(
            self._durations,
            ProtocolRun(
                rules=self._rules,
                groups_per_batch=max(1, round(workload.batch / workload.group_size)),
                group_size=workload.group_size,
                alpha=alpha,
                num_slots=num_rollout_devices * workload.slots_per_device,
                train_seconds=train_seconds,
                score_seconds=workload.score_seconds,
            ),
            num_warm_up=num_warm_up,
            num_measured=min(max(round(_num_rollouts / num_rollouts), _least_steps), _most_steps),
        )
