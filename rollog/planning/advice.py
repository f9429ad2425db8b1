"""One split of the devices for each alpha: the best one of those at which the protocol was played."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rollog.planning.sizing import best_device_split, plan_devices, split_at, with_alpha
from rollog.planning.split_search import PlayedSplit, SplitPlayer
from rollog.planning.synthetic_durations import lognormal_durations

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from rollog.planning.protocol_simulation import Durations, GroupRules
    from rollog.planning.sizing import Plan, Split, Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """What to do at one alpha, and the bounds beside it; seconds."""

    alpha: float
    advised: PlayedSplit
    """The split to choose and the mean step that the play of it took."""
    speedup: float
    """How many times faster that is than all devices taking turns, played too."""
    equation: PlayedSplit
    """The split of the equation (`plan.whole`), played."""
    bounds: Split
    """What the equation says of the advised split."""
    plan: Plan
    """What the equations say of the workload at this alpha."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayedPlan:
    """Advice by alpha."""

    turns_seconds: float
    """A synchronous step, played, in which all devices generate and then all of them train."""
    by_alpha: dict[float, Advice]


def advise(
    durations: Durations,
    workload: Workload,
    alphas: Iterable[float],
    *,
    rules: GroupRules,
    publish_seconds: float = 0.0,
) -> PlayedPlan:
    """Play the workload at every alpha. `publish_seconds`: those of a step that no device shortens.

    Raises ValueError without durations.
    """
    turns = SplitPlayer(durations, workload, rules, publish_seconds=publish_seconds).taking_turns()
    by_alpha = {}
    for alpha in sorted(set(alphas)):
        at_alpha = with_alpha(workload, alpha)
        player = SplitPlayer(durations, at_alpha, rules, publish_seconds=publish_seconds)
        # The split of the equation is played too, so the advice is never worse than it.
        equation = player.at(best_device_split(at_alpha).num_train_devices)
        advised = player.best()
        by_alpha[alpha] = Advice(
            alpha=alpha,
            advised=advised,
            speedup=turns / advised.step_seconds,
            equation=equation,
            bounds=split_at(at_alpha, advised.num_train_devices / workload.num_devices),
            plan=plan_devices(at_alpha),
        )
    return PlayedPlan(turns_seconds=turns, by_alpha=by_alpha)


def synthetic_groups(workload: Workload, rules: GroupRules) -> Durations:
    """Groups of log-normal rollouts with the mean and the longest of the workload."""
    durations = lognormal_durations(workload.mean_seconds, workload.max_seconds)
    num_replicas = workload.group_size + rules.redundant_replicas
    return [durations[place : place + num_replicas] for place in range(0, len(durations), num_replicas)]


def whole_groups(durations_by_group: Durations, group_size: int) -> Durations:
    """Recorded groups that have all their rollouts; where none has, all of them."""
    whole: Sequence[Sequence[float]] = [group for group in durations_by_group if len(group) >= group_size]
    return whole or durations_by_group
