"""Held-out accuracy from the `evaluations` topic.

One score per (evaluation, version): the mean reward over the prompts with a sample, where a prompt's first finished
sample counts and a prompt that only failed counts as 0. A prompt that is a game of several seats has a sample for each:
it counts with the mean of its seats, and each seat has a score of its own beside.
"""

from __future__ import annotations

from collections import defaultdict
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

    `num_failed` prompts have a seat that only failed. `num_rollouts` are the prompts times their seats, as far as heard
    of. `seat_rewards` are the means by seat, where there are several.
    """

    mean_reward: float
    num_prompts: int
    num_failed: int
    num_rollouts: int
    seat_rewards: Mapping[int, float] = field(default_factory=dict)


@dataclass(slots=True)
class EvaluationTally:
    """Collects the samples of all evaluations of a run."""

    _rewards: defaultdict[EvaluationKey, dict[Place, float]] = field(
        default_factory=lambda: defaultdict(dict)
    )
    _failed: defaultdict[EvaluationKey, set[Place]] = field(default_factory=lambda: defaultdict(set))

    def add(self, sample: Sample) -> None:
        """Take in one record of `evaluations`; what is not evidence about its pinned version is ignored."""
        if sample.kind is not Kind.EVALUATION or sample.evaluation is None or sample.pinned_version is None:
            return
        key, place = (sample.evaluation, sample.pinned_version), (sample.group_id, sample.replica)
        if sample.status is Status.FAILED:
            self._failed[key].add(place)
        elif sample.reward is not None and _is_evidence(sample):
            self._rewards[key].setdefault(place, sample.reward)

    def score(self, evaluation: str, version: int) -> EvaluationScore | None:
        """The score so far, or None when nothing arrived."""
        key = (evaluation, version)
        rewards = self._rewards.get(key, {})
        failed = self._failed.get(key, set()) - rewards.keys()
        if not rewards and not failed:
            return None
        by_prompt: defaultdict[int, list[float]] = defaultdict(list)
        by_seat: defaultdict[int, list[float]] = defaultdict(list)
        for (prompt, seat), reward in [*rewards.items(), *((place, 0.0) for place in failed)]:
            by_prompt[prompt].append(reward)
            by_seat[seat].append(reward)
        return EvaluationScore(
            mean_reward=fmean(fmean(of_prompt) for of_prompt in by_prompt.values()),
            num_prompts=len(by_prompt),
            num_failed=len({prompt for prompt, _ in failed}),
            num_rollouts=len(rewards) + len(failed),
            seat_rewards={seat: fmean(by_seat[seat]) for seat in sorted(by_seat)} if len(by_seat) > 1 else {},
        )

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
