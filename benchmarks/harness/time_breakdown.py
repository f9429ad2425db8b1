"""What the time of a run went into, by its log: when rollouts ran, when the trainer trained, when weights served.

Pure. Moments are seconds by the broker's append times; an interval is (start, end). A sample is appended as its
reward is there, a step just before its transaction is committed, so the intervals before these moments follow from
the seconds that the records themselves carry.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING

from schemas import Step

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from schemas import LedgerRecord, Sample

Interval = tuple[float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Generated:
    """One rollout: when the engine worked on it, and how many tokens it made."""

    interval: Interval
    num_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """One training step: when the trainer computed it, when it was committed, and its response tokens."""

    interval: Interval
    committed: float
    num_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeBreakdown:
    """Seconds of the time between the first and the last commit of a run, and what was done in them."""

    seconds: float
    num_steps: int
    generating_seconds: float
    """With at least one rollout under way."""
    training_seconds: float
    neither_seconds: float
    tokens_generated: float
    """Tokens of a rollout that began before the window or ended after it count by their share of its time."""
    tokens_trained: int


def generated(sample: Sample, appended: float) -> Generated:
    """A sample that was appended at that moment."""
    end = appended - sample.timings.reward_seconds
    return Generated(
        interval=(end - sample.timings.generation_seconds, end),
        num_tokens=sample.num_tokens + sample.wasted_tokens,
    )


def trained(record: LedgerRecord, appended: float) -> Trained | None:
    """A ledger record that was appended at that moment; None for one that is no step."""
    if not isinstance(record.body, Step):
        return None
    end = appended - record.body.timings.publish_seconds
    return Trained(
        interval=(end - record.body.timings.train_seconds, end),
        committed=appended,
        num_tokens=record.body.num_tokens,
    )


def time_breakdown(rollouts: Sequence[Generated], steps: Sequence[Trained]) -> TimeBreakdown:
    """What happened between the first and the last commit; at least two steps, in their order."""
    window = steps[0].committed, steps[-1].committed
    generating = [rollout.interval for rollout in rollouts]
    training = [step.interval for step in steps]
    seconds = window[1] - window[0]
    return TimeBreakdown(
        seconds=seconds,
        num_steps=len(steps) - 1,
        generating_seconds=covered(generating, window),
        training_seconds=covered(training, window),
        neither_seconds=seconds - covered(chain(generating, training), window),
        tokens_generated=sum(
            rollout.num_tokens * _share_inside(rollout.interval, window) for rollout in rollouts
        ),
        tokens_trained=sum(step.num_tokens for step in steps[1:]),
    )


def covered(intervals: Iterable[Interval], window: Interval) -> float:
    """Seconds of `window` in at least one of the intervals."""
    total, reached = 0.0, window[0]
    for start, end in sorted(intervals):
        begin, stop = max(start, reached), min(end, window[1])
        if stop > begin:
            total += stop - begin
            reached = stop
    return total


def serving_delays(published: Mapping[int, float], served: Iterable[tuple[int, float]]) -> list[float]:
    """Seconds from the notice of each version until a worker first said that it serves that one or a later one.

    Args:
        published: moment of the notice by version.
        served: version served and moment, of every heartbeat of a worker that serves one.
    """
    heartbeats = sorted(served, key=lambda heartbeat: heartbeat[1])
    firsts = (
        (version, next((moment for newest, moment in heartbeats if newest >= version), None))
        for version in sorted(published)
    )
    return [moment - published[version] for version, moment in firsts if moment is not None]


def _share_inside(interval: Interval, window: Interval) -> float:
    length = interval[1] - interval[0]
    if length <= 0:
        return float(window[0] <= interval[1] <= window[1])
    return covered([interval], window) / length
