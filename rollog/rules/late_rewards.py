"""Rewards that come apart from their samples: which record counts for a sample, and which are kept until it is known.

Pure. Trainer and readers of a recorded run ask here; the audit works it out by itself.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING

from schemas import Reward, RewardReference, sample_id

if TYPE_CHECKING:
    from collections.abc import Iterable

    from schemas import Sample

most_kept = 4
"""Rewards that are kept of one sample. Those that differ in nothing but their values are one: the first counts."""

_sample_id = re.compile(r"g(\d{1,18})\.r(\d{1,9})\.a(\d{1,9})", re.ASCII)


class RewardOutcome(StrEnum):
    """What became of one record of `rewards`, for people."""

    GIVEN = "given"
    """A sample waited for it."""
    KEPT = "kept"
    """Nobody waits for it now; it is kept while its group is open."""
    DOUBLED = "doubled"
    """An earlier one for its sample counts, or was refused for the same number of turns."""
    MISFIT = "misfit"
    """Its number of turn rewards is not that of the turns of its sample."""
    LATE = "late"
    """Its group is closed."""
    UNMATCHED = "unmatched"
    """No attempt of that name was ordered."""
    INVALID = "invalid"
    """It is no reward; a dead letter holds it, unless there were too many of them."""


@dataclass(frozen=True, slots=True)
class GivenReward:
    """A valid record of `rewards` and where it stands."""

    reward: Reward
    reference: RewardReference


def attempt_named(text: str) -> tuple[int, int, int] | None:
    """(group, replica, attempt) of a sample's id; None for what is no id of a training sample."""
    found = _sample_id.fullmatch(text)
    if found is None:
        return None
    group, replica, attempt = (int(number) for number in found.groups())
    return (group, replica, attempt) if sample_id(group, replica, attempt) == text else None


def fits(reward: Reward, num_turns: int) -> bool:
    """Whether a sample of so many turns can have this reward."""
    return len(reward.turn_rewards) in (0, num_turns)


def rewarded(sample: Sample, reward: Reward) -> Sample:
    """The sample as if it had come with this reward."""
    return replace(
        sample,
        reward=reward.reward,
        reward_components=reward.components,
        turn_rewards=reward.turn_rewards,
    )


@dataclass(slots=True)
class KeptRewards:
    """The rewards of samples of open groups, in the order in which they were read.

    Of a sample the first reward counts whose number of turn rewards fits. So a second one of the same number is never
    needed, nor any after one without turn rewards; at most four differ. Which counts is then a function of the topic
    alone, whenever its sample is read.

    Example: of sample g3.r0.a0 come rewards of 2, 2, 0 and 3 turns. The first and the third are kept. Its record then
    has 2 turns: the first counts. Had it 3 turns, the third did, which speaks of the whole response.
    """

    _of_group: dict[int, dict[str, list[GivenReward]]] = field(default_factory=dict)

    def __len__(self) -> int:
        return sum(len(kept) for of_sample in self._of_group.values() for kept in of_sample.values())

    def add(self, group: int, given: GivenReward) -> bool:
        """Keep one; False for a doubled one, which can count for nothing."""
        kept = self._of_group.setdefault(group, {}).setdefault(given.reward.sample_id, [])
        numbers = {len(earlier.reward.turn_rewards) for earlier in kept}
        if 0 in numbers or len(given.reward.turn_rewards) in numbers or len(kept) == most_kept:
            return False
        kept.append(given)
        return True

    def of(self, group: int, name: str, num_turns: int) -> GivenReward | None:
        """The one that counts for a sample of so many turns; None while there is none."""
        kept = self._of_group.get(group, {}).get(name, ())
        return next((given for given in kept if fits(given.reward, num_turns)), None)

    def forget(self, groups: Iterable[int]) -> None:
        """These groups are closed."""
        for group in groups:
            self._of_group.pop(group, None)

    def mark(self, position: int, closing: Iterable[int] = ()) -> int:
        """Where a new reader must begin to find all that is kept, once `closing` are closed; else `position`."""
        gone = set(closing)
        offsets = (
            given.reference.offset
            for group, of_sample in self._of_group.items()
            if group not in gone
            for kept in of_sample.values()
            for given in kept
        )
        return min(offsets, default=position)
