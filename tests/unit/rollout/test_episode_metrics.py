"""The counts of a pool, as metrics."""

from __future__ import annotations

from producers.environments.pool import PoolCounts
from producers.rollout.episode_metrics import EpisodeMetrics
from rollog.kernel.metrics import Metrics


def test_what_the_counts_have_grown_by_is_added_once() -> None:
    counts, metrics = PoolCounts(opened=2), Metrics()
    episodes = EpisodeMetrics(counts, metrics)
    episodes.observe()
    counts.opened, counts.failed, counts.timed_out, counts.cancelled, counts.kills = 7, 3, 1, 2, 1
    episodes.observe()
    episodes.observe()

    def counted(outcome: str) -> float | None:
        return metrics.registry.get_sample_value("rollog_rollout_episodes_total", {"outcome": outcome})

    outcomes = ("opened", "failed", "timed_out", "cancelled")
    assert {outcome: counted(outcome) for outcome in outcomes} == {
        "opened": 7,
        "failed": 3,
        "timed_out": 1,
        "cancelled": 2,
    }
    assert metrics.registry.get_sample_value("rollog_rollout_environment_kills_total") == 1
