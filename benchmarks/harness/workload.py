"""The workload of a seed: how long each rollout takes and which prompts pass the filter.

Pure. Everything is a hash of (seed, number, group, replica), so that every mode sees the same durations and verdicts,
in any order, in any process, and so does the ideal model.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from statistics import NormalDist

tokens_per_second = 2.0
"""Speed of the simulated engine in its own time; durations are whole numbers of tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SeededWorkload:
    """Workload `number` of `seed`: lognormal durations (median and coefficient of variation) and a pass rate.

    With `belongs_to_prompt` all rollouts of a prompt take the same time. Seconds are those of the modelled engine,
    before any scaling of time.
    """

    seed: int
    number: int
    pass_rate: float = 1.0
    median_seconds: float = 20.0
    variation: float = 0.5
    longest_seconds: float = 400.0
    belongs_to_prompt: bool = False

    def num_tokens(self, group: int, replica: int) -> int:
        """Length of a rollout: its duration at `tokens_per_second`."""
        sigma = math.sqrt(math.log(1 + self.variation**2))
        which = (group,) if self.belongs_to_prompt else (group, replica)
        normal = NormalDist().inv_cdf(self._uniform("duration", *which))
        seconds = min(self.median_seconds * math.exp(sigma * normal), self.longest_seconds)
        return max(1, round(seconds * tokens_per_second))

    def seconds(self, group: int, replica: int) -> float:
        """Duration of a rollout that has the engine's full speed."""
        return self.num_tokens(group, replica) / tokens_per_second

    def passes(self, group: int) -> bool:
        """Whether the group's rewards pass the filter."""
        return self._uniform("verdict", group) < self.pass_rate

    def _uniform(self, *parts: object) -> float:
        """A number in (0, 1)."""
        text = "/".join(str(part) for part in ("rollog-bench", self.seed, self.number, *parts))
        digest = hashlib.sha256(text.encode()).digest()
        return (int.from_bytes(digest[:6], "big") + 0.5) / (1 << 48)
