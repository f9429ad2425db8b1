"""What chance decides about an episode: how long its environment takes for each answer, and whether it ever answers.

Only the standard library is imported here, since environments draw in processes of their own. An episode's draws are a
hash of (seed, number, group, replica, attempt): every mode sees the same ones, and so does the ideal.
"""

from __future__ import annotations

import random
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeDraw:
    """Engine seconds of each answer; in turn `hangs_at` none ever comes."""

    latencies: tuple[float, ...]
    hangs_at: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeDraws:
    """Draw `number` of `seed`: latencies N(mean, sigma) cut at 0, in engine seconds.

    A share of the episodes (`slow_share`) has an environment that is `slowness` times slower in every turn; another
    (`hang_share`) has one that stops answering at some turn.
    """

    seed: int
    number: int
    num_turns: int
    mean: float = 10.0
    sigma: float = 10.0
    slow_share: float = 0.0
    slowness: float = 10.0
    hang_share: float = 0.0

    def of(self, group: int, replica: int, attempt: int) -> EpisodeDraw:
        """The draw of one attempt at an episode."""
        name = f"agentic/{self.seed}/{self.number}/{group}/{replica}/{attempt}"
        noise = random.Random(name)  # a workload, not a secret
        fate = noise.random()
        hangs_at = noise.randrange(self.num_turns)
        factor = self.slowness if fate < self.slow_share else 1.0
        latencies = tuple(
            factor * max(0.0, noise.gauss(self.mean, self.sigma)) for _ in range(self.num_turns)
        )
        hangs = self.slow_share <= fate < self.slow_share + self.hang_share
        return EpisodeDraw(latencies=latencies, hangs_at=hangs_at if hangs else None)

    def mean_episode_seconds(self, turn_seconds: float) -> float:
        """About how long an episode takes that ends, those with slow environments included."""
        slow = 1.0 + self.slow_share * (self.slowness - 1.0)
        return self.num_turns * (turn_seconds + slow * self.mean)
