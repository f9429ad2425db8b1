"""The figures of a finished (or stopped) run, as written to summary.json."""

from __future__ import annotations

import json
from statistics import fmean
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from consumers.evaluation import EvaluationScore
    from consumers.progress import ProgressView
    from rollog.settings.settings import Settings
    from schemas import StepTimings

Summary = dict[str, object]


def summarize(
    settings: Settings,
    view: ProgressView,
    *,
    kafka_version: str,
    up_seconds: float | None = None,
) -> Summary:
    """All figures. Times of the run are the log's; `up_seconds` is how long a `rollog up` took, with preparation."""
    last = view.version
    return {
        "run": settings.run_name,
        "closed": view.is_closed,
        "close_reason": view.close_reason,
        "steps": max(last, 0),
        "held_out_before": view.accuracy("greedy", 0),
        "held_out_after": view.accuracy("greedy", last) if last > 0 else None,
        "held_out_before_sampled": view.accuracy("sampled", 0),
        "held_out_after_sampled": view.accuracy("sampled", last) if last > 0 else None,
        "held_out_prompts": max((score.num_prompts for score in view.held_out.values()), default=0),
        "held_out_by_version": _by_version(view),
        "held_out_by_seat": _by_seat(view),
        "reward_by_step": [round(reward, 6) for reward in view.reward_history],
        "reward_control": settings.reward.control,
        "samples_produced": view.samples_produced,
        "samples_trained": view.dispositions.get("trained", 0),
        "samples_by_disposition": view.dispositions,
        "reasons": view.reasons,
        "groups_by_outcome": view.groups,
        "max_lag": view.lag_max,
        "alpha": view.alpha,
        "alpha_by_step": list(view.alpha_history),
        "wall_seconds": round(view.wall_seconds, 3),
        "up_seconds": None if up_seconds is None else round(up_seconds, 3),
        "generating_seconds": round(view.generating_seconds, 3),
        "tokens_generated": view.tokens_generated,
        "tokens_trained": view.tokens_trained,
        "tokens_per_second": _rate(view.tokens_generated, view.generating_seconds),
        "step_seconds": step_split(view.step_timings),
        "engine": ", ".join(view.engines) or settings.rollout.engine,
        "trainer": settings.trainer.engine,
        "kafka_version": kafka_version,
        "versions": view.versions,
        "seed": settings.run.seed,
        "settings_changed": view.changed_settings,
        "ledger_head": view.ledger_head,
    }


def step_split(timings: Sequence[StepTimings]) -> dict[str, float]:
    """Mean seconds of a step, by what the trainer did.

    The first step is left out where there are others, because it waits for the engines to start.
    """
    if not timings:
        return {}
    timings = timings[1:] or timings
    means = {
        "waiting": fmean(each.wait_seconds for each in timings),
        "training": fmean(each.train_seconds for each in timings),
        "publishing": fmean(each.publish_seconds for each in timings),
        "log": fmean(each.commit_seconds for each in timings),
        "checkpoint": fmean(each.checkpoint_seconds for each in timings),
    }
    return {name: round(value, 4) for name, value in {**means, "total": sum(means.values())}.items()}


def write_summary(summary: Summary, directory: Path) -> Path:
    """Write summary.json whole or not at all; returns its path."""
    path = directory / "summary.json"
    partial = directory / "summary.json.partial"
    partial.write_text(json.dumps(summary, indent=2) + "\n")
    partial.replace(path)
    return path


def _by_version(view: ProgressView) -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, float]] = {}
    for (name, version), score in _in_order(view):
        found.setdefault(name, {})[str(version)] = round(score.mean_reward, 6)
    return found


def _by_seat(view: ProgressView) -> dict[str, dict[str, dict[str, float]]]:
    """By evaluation, version and seat, where games have several seats."""
    found: dict[str, dict[str, dict[str, float]]] = {}
    for (name, version), score in _in_order(view):
        if score.seat_rewards:
            means = {str(seat): round(reward, 6) for seat, reward in score.seat_rewards.items()}
            found.setdefault(name, {})[str(version)] = means
    return found


def _in_order(view: ProgressView) -> list[tuple[tuple[str, int], EvaluationScore]]:
    return sorted(view.held_out.items(), key=lambda item: (item[0][1], item[0][0]))


def _rate(amount: int, seconds: float) -> float:
    return round(amount / seconds, 1) if seconds > 0 else 0.0
