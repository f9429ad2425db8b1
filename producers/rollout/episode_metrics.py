"""What became of a worker's episodes, as metrics."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from producers.environments.pool import PoolCounts
    from rollog.kernel.metrics import Metrics


class EpisodeMetrics:
    """Adds to the metrics what the counts of a pool have grown by since it looked last."""

    def __init__(self, counts: PoolCounts, metrics: Metrics) -> None:
        self._counts = counts
        self._metrics = metrics
        self._seen = dict.fromkeys(asdict(counts), 0)

    def observe(self) -> None:
        """Look at the counts."""
        counts = asdict(self._counts)
        for event, number in counts.items():
            metrics = self._metrics
            counter = (
                metrics.rollout_environment_kills
                if event == "kills"
                else metrics.rollout_episodes.labels(event)
            )
            counter.inc(number - self._seen[event])
        self._seen = counts
