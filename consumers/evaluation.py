"""Held-out accuracy from the `evaluations` topic.

One score per (evaluation, version): the mean reward over the prompts with a sample, where a prompt's first finished
sample counts and a prompt that only failed counts as 0.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from schemas import Kind, Status

if TYPE_CHECKING:
    from schemas import Sample

EvaluationKey = tuple[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationScore:
    """Result of one evaluation of one version."""

    mean_reward: float
    num_prompts: int
    num_failed: int


@dataclass(slots=True)
class EvaluationTally:
    """Collects the samples of all evaluations of a run."""

    _rewards: defaultdict[EvaluationKey, dict[int, float]] = field(default_factory=lambda: defaultdict(dict))
    _failed: defaultdict[EvaluationKey, set[int]] = field(default_factory=lambda: defaultdict(set))

    def add(self, sample: Sample) -> None:
        """Take in one record of `evaluations`; what is not evidence about its pinned version is ignored."""
        if sample.kind is not Kind.EVALUATION or sample.evaluation is None or sample.pinned_version is None:
            return
        key = (sample.evaluation, sample.pinned_version)
        if sample.status is Status.FAILED:
            self._failed[key].add(sample.group_id)
        elif sample.reward is not None and _is_evidence(sample):
            self._rewards[key].setdefault(sample.group_id, sample.reward)

    def score(self, evaluation: str, version: int) -> EvaluationScore | None:
        """The score so far, or None when nothing arrived."""
        key = (evaluation, version)
        rewards = self._rewards.get(key, {})
        failed = self._failed.get(key, set()) - rewards.keys()
        num_prompts = len(rewards) + len(failed)
        if num_prompts == 0:
            return None
        return EvaluationScore(
            mean_reward=sum(rewards.values()) / num_prompts, num_prompts=num_prompts, num_failed=len(failed)
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
