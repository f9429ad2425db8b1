"""What is compared: lock-step against asynchronous episodes, redundant environments, and whole training. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from benchmarks.agentic.draws import EpisodeDraws
from benchmarks.agentic.ideal import EpisodeModel, EpisodePlan, lock_step_ends
from benchmarks.harness.variant import Variant

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

turn_seconds = 1.0
"""Engine seconds that the policy takes for one turn."""
_timeout_episodes = 10.0
"""An episode that takes longer than so many mean ones has failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeVariant(Variant):
    """A way of playing episodes; `slots_per_worker` environments play at once.

    `in_lock_step`: no environment's next turn is generated before the slowest of the round has answered.
    """

    num_turns: int
    sigma: float
    mean: float = 10.0
    slow_share: float = 0.0
    hang_share: float = 0.0
    in_lock_step: bool = False

    def draws(self, seed: int, number: int) -> EpisodeDraws:
        """Draw `number` of `seed`."""
        return EpisodeDraws(
            seed=seed,
            number=number,
            num_turns=self.num_turns,
            mean=self.mean,
            sigma=self.sigma,
            slow_share=self.slow_share,
            hang_share=self.hang_share,
        )

    @property
    def timeout_seconds(self) -> float:
        """Engine seconds after which an episode has failed; where none hangs, none is timed."""
        if not self.hang_share:
            return math.inf
        return _timeout_episodes * self.draws(0, 0).mean_episode_seconds(turn_seconds)

    @property
    def plan(self) -> EpisodePlan:
        """What the ideal plays."""
        assert not isinstance(self.alpha, str)
        return EpisodePlan(
            num_groups=self.num_groups,
            group_size=self.group_size,
            num_places=self.slots_per_worker,
            num_steps=self.num_steps,
            alpha=int(self.alpha),
            redundant_groups=self.redundant_groups,
            redundant_replicas=self.redundant_replicas,
            turn_seconds=turn_seconds,
            train_seconds=self.train_seconds,
            timeout_seconds=self.timeout_seconds,
        )

    def ideal_seconds(self, seed: int, number: int) -> float:
        """Engine seconds of the ideal to the full batch, or of one step of several."""
        draws = self.draws(seed, number)
        ends = (
            lock_step_ends(draws, self.plan)
            if self.in_lock_step
            else EpisodeModel(draws, self.plan).step_ends()
        )
        return seconds_of_a_step(ends)


def seconds_of_a_step(ends: list[float]) -> float:
    """Of one step its end, of several the mean time between them."""
    return ends[0] if len(ends) == 1 else (ends[-1] - ends[0]) / (len(ends) - 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Two variants on the same draws; the figure is the time of `baseline` over that of `mode`."""

    name: str
    baseline: EpisodeVariant
    mode: EpisodeVariant


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One question, the draws it is published with, its speed, and the least share of the ideal that is aimed at.

    `comparisons` takes how many environments there are; the samples of a batch are as many.
    """

    question: str
    num_draws: int
    num_environments: int
    speed: float
    least_share_of_ideal: float
    comparisons: Callable[[int], list[Comparison]]


def asynchrony_comparisons(
    num_environments: int, sigmas: tuple[float, ...] = (10.0,), *, num_turns: int = 30
) -> list[Comparison]:
    """Every environment on its own against lock-step, for several spreads of the latencies."""

    def variant(name: str, sigma: float, *, in_lock_step: bool) -> EpisodeVariant:
        return EpisodeVariant(
            name=f"{name}.sigma_{sigma:g}",
            num_groups=num_environments // 8,
            group_size=8,
            slots_per_worker=num_environments,
            num_turns=num_turns,
            sigma=sigma,
            in_lock_step=in_lock_step,
        )

    return [
        Comparison(
            name=f"asynchrony.sigma_{sigma:g}",
            baseline=variant("lock_step", sigma, in_lock_step=True),
            mode=variant("asynchronous", sigma, in_lock_step=False),
        )
        for sigma in sigmas
    ]


def redundancy_comparisons(
    num_environments: int, *, more_members: tuple[int, ...] = (1, 4)
) -> list[Comparison]:
    """More groups and members than needed, where environments are slow or hang, against just as many as needed.

    Groups have 8 members; an eighth more groups is started, with one more member and with four more.
    """
    group_size = 8
    num_groups = num_environments // group_size
    more_groups = max(1, num_groups // 8)

    def variant(more_groups: int, more_members: int) -> EpisodeVariant:
        groups, members = num_groups + more_groups, group_size + more_members
        return EpisodeVariant(
            name=f"redundancy.{groups}x{members}",
            num_groups=num_groups,
            group_size=group_size,
            redundant_groups=more_groups,
            redundant_replicas=more_members,
            slots_per_worker=groups * members,
            num_turns=20,
            sigma=5.0,
            slow_share=0.03,
            hang_share=0.01,
        )

    return [
        Comparison(
            name=f"redundancy.{num_groups + more_groups}x{group_size + more}",
            baseline=variant(0, 0),
            mode=variant(more_groups, more),
        )
        for more in more_members
    ]


def training_comparisons(
    num_environments: int, *, num_steps: int = 6, num_turns: int = 10
) -> list[Comparison]:
    """Environment-level asynchrony, then asynchronous training, then redundancy on top, each against lock-step.

    Raises ValueError for another number of environments than 64: how long training takes is written down for that.
    """
    if num_environments != _training_environments:
        raise ValueError(f"training is measured with {_training_environments} environments")
    lock_step = _training("training.lock_step", num_steps, num_turns, in_lock_step=True)
    modes = (
        _training("training.asynchronous_environments", num_steps, num_turns),
        _training("training.alpha_1", num_steps, num_turns, alpha=1.0),
        _training(
            "training.alpha_1_redundant", num_steps, num_turns, alpha=1.0, more_groups=1, more_members=2
        ),
    )
    return [Comparison(name=mode.name, baseline=lock_step, mode=mode) for mode in modes]


_training_environments = 64
_lock_step_seconds = 1446.0
"""Mean ideal time of a batch of 8 x 8 episodes of 10 turns in lock-step (sigma 10, 3 % slow); a test plays it."""


def _training(
    name: str,
    num_steps: int,
    num_turns: int,
    *,
    alpha: float = 0.0,
    in_lock_step: bool = False,
    more_groups: int = 0,
    more_members: int = 0,
) -> EpisodeVariant:
    return EpisodeVariant(
        name=name,
        num_groups=8,
        group_size=8,
        redundant_groups=more_groups,
        redundant_replicas=more_members,
        slots_per_worker=(8 + more_groups) * (8 + more_members),
        num_steps=num_steps,
        alpha=alpha,
        # A third of a step in lock-step.
        train_seconds=_lock_step_seconds / 2 * num_turns / 10,
        num_turns=num_turns,
        sigma=10.0,
        slow_share=0.03,
        in_lock_step=in_lock_step,
    )


parts: Mapping[str, Part] = {
    "asynchrony": Part(
        question="every environment on its own against lock-step",
        num_draws=12,
        num_environments=512,
        speed=4.0,
        least_share_of_ideal=0.95,
        comparisons=asynchrony_comparisons,
    ),
    "spreads": Part(
        question="the same with latencies that vary less",
        num_draws=4,
        num_environments=512,
        speed=4.0,
        least_share_of_ideal=0.95,
        comparisons=partial(asynchrony_comparisons, sigmas=(5.0, 1.0)),
    ),
    "redundancy": Part(
        question="redundant environments where some are slow or hang",
        num_draws=12,
        num_environments=256,
        speed=4.0,
        least_share_of_ideal=0.95,
        comparisons=redundancy_comparisons,
    ),
    "training": Part(
        question="asynchronous environments, training and redundancy against training in lock-step",
        num_draws=12,
        num_environments=_training_environments,
        speed=20.0,
        least_share_of_ideal=0.9,
        comparisons=training_comparisons,
    ),
}
