"""Held-out accuracy from the `evaluations` topic.

One score per (evaluation, version): the mean reward over the prompts with a sample, where a prompt's first finished
sample counts and a prompt that only failed counts as 0. A prompt that is a game of several seats has a sample for each:
it counts with the mean of its seats, and each seat has a score of its own beside. A game that lacks a seat is left out
of both: what is not heard of is neither won nor lost.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping  # noqa: TC003  # read by dataclasses' own annotations
from dataclasses import dataclass, field
from statistics import fmean
from typing import TYPE_CHECKING

from schemas import Kind, Status

if TYPE_CHECKING:
    from schemas import Sample

EvaluationKey = tuple[str, int]
Place = tuple[int, int]
"""Prompt and seat."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationScore:
    """Result of one evaluation of one version.

    `num_prompts` count, of which `num_failed` have a seat that only failed; `num_incomplete` lack a seat and do not.
    `num_rollouts` are the seats of all of them, as far as heard of. `seat_rewards` are the means by seat, where there
    are several.
    """

    mean_reward: float
    num_prompts: int
    num_failed: int
    num_rollouts: int
    num_incomplete: int = 0
    seat_rewards: Mapping[int, float] = field(default_factory=dict)


@dataclass(slots=True)
class EvaluationTally:
    """Collects the samples of all evaluations of a run, whose prompts are games of `num_seats`."""

    num_seats: int = 1
    _rewards: defaultdict[EvaluationKey, dict[Place, float]] = field(
        default_factory=lambda: defaultdict(dict)
    )
    _failed: defaultdict[EvaluationKey, set[Place]] = field(default_factory=lambda: defaultdict(set))

    def add(self, sample: Sample) -> None:
        """Take in one record of `evaluations`; what is not evidence about its pinned version is ignored."""
        if sample.kind is not Kind.EVALUATION or sample.evaluation is None or sample.pinned_version is None:
            return
        if sample.replica >= self.num_seats:
            return  # nobody has ordered it
        key, place = (sample.evaluation, sample.pinned_version), (sample.group_id, sample.replica)
        if sample.status is Status.FAILED:
            self._failed[key].add(place)
        elif sample.reward is not None and _is_evidence(sample):
            self._rewards[key].setdefault(place, sample.reward)

    def score(self, evaluation: str, version: int) -> EvaluationScore | None:
        """The score so far, or None when no prompt has all its seats."""
        key = (evaluation, version)
        rewards = self._rewards.get(key, {})
        failed = self._failed.get(key, set()) - rewards.keys()
        heard_of = rewards | dict.fromkeys(failed, 0.0)
        num_seats_heard = Counter(prompt for prompt, _ in heard_of)
        complete = {prompt for prompt, num_heard in num_seats_heard.items() if num_heard == self.num_seats}
        if not complete:
            return None
        counted = {place: reward for place, reward in heard_of.items() if place[0] in complete}
        return EvaluationScore(
            # Each prompt has as many seats: the mean over all is that of the means of the prompts.
            mean_reward=fmean(counted.values()),
            num_prompts=len(complete),
            num_failed=len({prompt for prompt, _ in failed} & complete),
            num_rollouts=len(heard_of),
            num_incomplete=len(num_seats_heard) - len(complete),
            seat_rewards=self._by_seat(counted),
        )

    def _by_seat(self, counted: Mapping[Place, float]) -> dict[int, float]:
        if self.num_seats == 1:
            return {}
        by_seat: defaultdict[int, list[float]] = defaultdict(list)
        for (_, seat), reward in counted.items():
            by_seat[seat].append(reward)
        return {seat: fmean(by_seat[seat]) for seat in sorted(by_seat)}

    def scores(self) -> dict[EvaluationKey, EvaluationScore]:
        """All scores by (evaluation, version), in order of version."""
        keys = sorted(self._rewards.keys() | self._failed.keys(), key=lambda key: (key[1], key[0]))
        scores = {key: self.score(*key) for key in keys}
        return {key: score for key, score in scores.items() if score is not None}


def _is_evidence(sample: Sample) -> bool:
    """Whether the sample finished under its pinned version throughout."""
    return sample.status is Status.FINISHED and all(
        segment.version == sample.pinned_version for segment in sample.all_segments
    )
