"""Runs that differ in the time of a fetch, as a share of a step that waits for no fetch. Pure.

16 slots of two workers make 32 rollouts a step of 11.2 s in the mean: a step takes about 22.4 s, because the
slots are what it lacks. A swap takes a hundredth of a step.
"""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.harness.variant import Variant

alphas = (1.0, 3.0)
fetches = (0.1, 0.5, 1.0)
"""Time of a fetch over that of a step."""
step_seconds = 22.4
"""Engine seconds: the mean of a rollout times rollouts in a step, over the slots."""
num_steps = 16
num_workers = 2
slots_per_worker = 8
least_busy = 0.97
"""Target: the share of the slots' time in which tokens are made over that with reloads that take no time."""
has_target_from_alpha = 3.0
"""With less, what may be generated before the newest version is served is soon done: see docs/benchmarks.md."""

_swap_share = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A run at `alpha` whose fetches take `fetch` steps; one that stands still generates nothing in a fetch either."""

    alpha: float
    fetch: float
    stands_still: bool = False

    @property
    def name(self) -> str:
        """Of the case and its figures."""
        way = ".standing_still" if self.stands_still else ""
        return f"reloads.alpha_{self.alpha:g}.fetch_{self.fetch:g}_steps{way}"

    @property
    def baseline(self) -> Case:
        """The same run with reloads that take no time."""
        return Case(alpha=self.alpha, fetch=0.0)

    def variant(self, *, steps: int = num_steps) -> Variant:
        """How its run is made."""
        fetch = self.fetch * step_seconds
        swap = _swap_share * step_seconds if fetch else 0.0
        return Variant(
            name=self.name,
            num_groups=8,
            group_size=4,
            num_workers=num_workers,
            slots_per_worker=slots_per_worker,
            num_steps=steps,
            alpha=self.alpha,
            train_seconds=0.2 * step_seconds,
            fetch_seconds=0.0 if self.stands_still else fetch,
            swap_seconds=swap + fetch if self.stands_still else swap,
            median_seconds=10.0,
            longest_seconds=40.0,
        )


cases = [
    *(Case(alpha=alpha, fetch=fetch) for alpha in alphas for fetch in (0.0, *fetches)),
    *(Case(alpha=alpha, fetch=fetch, stands_still=True) for alpha in alphas for fetch in fetches),
]
