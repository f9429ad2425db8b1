"""How many devices should generate and how many should train: bounds on a step's time (docs/planning.md).

Pure arithmetic over times in seconds. With N rollouts per step on K devices of S slots each,

    a = N mu / (S K)       rollouts of a step, spread over every slot
    b = E N mu_train / K   training of a step, spread over every device
    c = L / (alpha + 1)    what is left of the longest rollout, scoring included, when alpha + 1 batches share it

a share beta of the devices for the trainer makes the stages a / (1 - beta) + c and b / beta long. The bound of queue
scheduling and that of `proposition_step_seconds` are Propositions 1 and 2 of ROLL Flash, arXiv 2510.11345; the
equation of `best_share` is tighter than the second and rollog's own.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

_least_devices = 2
_above_zero = ("mean_seconds", "max_seconds", "train_seconds_per_sample")
_at_least_one = ("batch", "group_size", "num_epochs", "slots_per_device", "rollouts_per_sample")


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What one training step asks of the devices. Raises ValueError for figures that no run can have."""

    mean_seconds: float
    """mu: mean time a rollout holds its slot."""
    max_seconds: float
    """The longest a rollout holds its slot."""
    train_seconds_per_sample: float
    """mu_train: seconds one device trains on one sample, once."""
    batch: int
    """Samples trained in one step: groups times rollouts of a group."""
    alpha: float
    """Asynchronous ratio."""
    num_devices: int
    """K: devices to be shared out."""
    group_size: int = 1
    """G: samples of one prompt, which are trained in the same step."""
    num_epochs: int = 1
    """E: how often a step trains on each of its samples."""
    slots_per_device: int = 1
    """S: rollouts that one generating device has in flight at once."""
    rollouts_per_sample: float = 1.0
    """Rollouts made for each sample that is trained; over 1 where groups are filtered or go stale."""
    score_seconds: float = 0.0
    """Time from the last token of a rollout to its reward, in which it holds no slot."""

    def __post_init__(self) -> None:
        for name in _above_zero:
            _check(name, getattr(self, name), low=0.0, is_open=True)
        for name in ("alpha", "score_seconds"):
            _check(name, getattr(self, name), low=0.0)
        for name in _at_least_one:
            _check(name, getattr(self, name), low=1.0)
        if self.max_seconds < self.mean_seconds:
            raise ValueError(
                f"max_seconds = {self.max_seconds:g} is below mean_seconds = {self.mean_seconds:g}: no mean is above "
                "the longest; exchange them or measure again"
            )
        if self.num_devices < _least_devices:
            raise ValueError(
                f"num_devices = {self.num_devices} cannot be shared out: one device must generate and one train; "
                f"give at least {_least_devices}"
            )

    @property
    def num_rollouts(self) -> float:
        """N: rollouts made for one step."""
        return self.batch * self.rollouts_per_sample

    @property
    def generating(self) -> float:
        """a: seconds of a step's rollouts on every slot of every device."""
        return self.num_rollouts * self.mean_seconds / (self.slots_per_device * self.num_devices)

    @property
    def training(self) -> float:
        """b: seconds of a step's training on every device."""
        return self.num_epochs * self.batch * self.train_seconds_per_sample / self.num_devices

    @property
    def longest(self) -> float:
        """L: from the beginning of the longest rollout to its reward."""
        return self.max_seconds + self.score_seconds

    @property
    def tail(self) -> float:
        """c: seconds of the longest rollout that one step pays for."""
        return self.longest / (self.alpha + 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """Times of one step when a share `beta` of the devices trains and the rest generates, in seconds."""

    beta: float
    rollout_seconds: float
    train_seconds: float
    step_seconds: float
    """Predicted: the longer stage, or both in turn where alpha = 0."""
    step_seconds_at_most: float
    """No run under this admission rule takes longer on average, however rollouts fall (docs/planning.md)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSplit:
    """A split into whole devices."""

    num_train_devices: int
    num_rollout_devices: int
    split: Split


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What `rollog plan` has to say about a workload, times in seconds."""

    workload: Workload
    completion_seconds: float
    """Bound on making the rollouts of one step on all devices."""
    turns_seconds: float
    """Synchronous, every device generating, then every device training."""
    synchronous: DeviceSplit
    """Synchronous (alpha = 0) on devices shared out once and for all."""
    exact: Split
    """The best split, were devices divisible."""
    whole: DeviceSplit
    """The best split into whole devices."""

    @property
    def speedup(self) -> float:
        """Predicted speed-up of `whole` over taking turns."""
        return self.turns_seconds / self.whole.split.step_seconds

    @property
    def speedup_limit(self) -> float:
        """What the exact split would reach as alpha grows without end."""
        return self.turns_seconds / (self.workload.generating + self.workload.training)


def completion_bound(num_rollouts: float, num_slots: float, mean_seconds: float, longest: float) -> float:
    """T <= (Q / K) mu + L: Q rollouts, queued for K slots, are all finished after this many seconds."""
    return num_rollouts / num_slots * mean_seconds + longest


def best_share(workload: Workload) -> float:
    """The share beta of the devices that should train, in (0, 1).

    With alpha > 0 both stages run side by side and are equally long: the smaller root of
    c x^2 - (a + b + c) x + b = 0. With alpha = 0 they take turns, and their sum is least at
    sqrt(b) / (sqrt(a) + sqrt(b)).
    """
    a, b, c = workload.generating, workload.training, workload.tail
    if workload.alpha == 0:
        return math.sqrt(b) / (math.sqrt(a) + math.sqrt(b))
    # Written so that nothing cancels: the discriminant as a sum of squares and products, the root as a quotient.
    root = math.sqrt((b - c) ** 2 + a * a + 2 * a * (b + c))
    return 2 * b / (a + b + c + root)


def proposition_share(workload: Workload) -> float:
    """The trainer's share of the devices by Proposition 2: b / (a + b + c).

    It makes (a + c) / (1 - beta) and b / beta equally long: the longest rollout is taken to slow down with fewer
    rollout devices, which it does not.
    """
    return workload.training / proposition_step_seconds(workload)


def proposition_step_seconds(workload: Workload) -> float:
    """Proposition 2: at its share an asynchronous step takes at most a + b + c seconds."""
    return workload.generating + workload.training + workload.tail


def split_at(workload: Workload, beta: float) -> Split:
    """What a share `beta` in (0, 1) for the trainer makes of the workload."""
    rollout = workload.generating / (1 - beta) + workload.tail
    train = workload.training / beta
    side_by_side = max(rollout, train)
    num_batches = math.floor(workload.alpha) + 1
    # Whole batches only: a fraction of alpha allows part of a batch, which no bound may count on.
    held_rollout = workload.generating / (1 - beta) + workload.longest / num_batches
    return Split(
        beta=beta,
        rollout_seconds=rollout,
        train_seconds=train,
        step_seconds=side_by_side if workload.alpha > 0 else rollout + train,
        step_seconds_at_most=max(train, held_rollout + train / num_batches),
    )


def best_device_split(workload: Workload) -> DeviceSplit:
    """The better of the whole numbers of devices around beta K, with at least one on either side."""
    num_devices = workload.num_devices
    exact = best_share(workload) * num_devices
    neighbours = {min(max(number, 1), num_devices - 1) for number in (math.floor(exact), math.ceil(exact))}
    splits = {number: split_at(workload, number / num_devices) for number in neighbours}
    best = min(splits, key=lambda number: (splits[number].step_seconds, number))
    return DeviceSplit(num_train_devices=best, num_rollout_devices=num_devices - best, split=splits[best])


def turns_bound(workload: Workload) -> float:
    """T_sync <= a + L + b: all devices generate a batch to its last rollout, then all of them train."""
    return workload.generating + workload.longest + workload.training


def plan_devices(workload: Workload) -> Plan:
    """The plan for one workload."""
    slots = workload.num_devices * workload.slots_per_device
    return Plan(
        workload=workload,
        completion_seconds=completion_bound(
            workload.num_rollouts, slots, workload.mean_seconds, workload.longest
        ),
        turns_seconds=turns_bound(workload),
        synchronous=best_device_split(with_alpha(workload, 0.0)),
        exact=split_at(workload, best_share(workload)),
        whole=best_device_split(workload),
    )


def with_alpha(workload: Workload, alpha: float) -> Workload:
    """The same workload at another asynchronous ratio."""
    return replace(workload, alpha=alpha)


def _check(name: str, value: float, *, low: float, is_open: bool = False) -> None:
    is_fine = math.isfinite(value) and (value > low if is_open else value >= low)
    if not is_fine:
        bound = f"above {low:g}" if is_open else f"at least {low:g}"
        raise ValueError(f"{name} = {value:g} must be a finite number, {bound}")
