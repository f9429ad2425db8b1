"""Rewards that come apart from their samples: which record counts for a sample, and which are kept until it is known.

Pure. Trainer and readers of a recorded run ask here; the audit works it out by itself.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Self

from rollog.rules.headers import record_digest
from schemas import Reward, RewardReference, SchemaError, sample_id
from schemas.codec import decode_as

if TYPE_CHECKING:
    from collections.abc import Iterable

    from schemas import Sample

most_kept = 4
"""Rewards that are kept of one sample. Those that differ in nothing but their values are one: the first counts."""

most_reward_bytes = 1 << 16
"""A larger record of `rewards` is none."""

_kept_bytes_of_replica = 128 << 10
_bytes_beside_value = 1 << 10
"""What a kept reward takes beside its value, roughly and rather too much."""

_sample_id = re.compile(r"g(\d{1,18})\.r(\d{1,9})\.a(\d{1,9})", re.ASCII)


class RewardOutcome(StrEnum):
    """What became of one record of `rewards`, for people."""

    GIVEN = "given"
    """A sample waited for it."""
    KEPT = "kept"
    """Nobody waits for it now, perhaps nobody has ordered its attempt yet; it is kept while its group is not closed."""
    DOUBLED = "doubled"
    """An earlier one for its sample counts, or was refused for the same number of turns."""
    MISFIT = "misfit"
    """Its number of turn rewards is not that of the turns of its sample."""
    LATE = "late"
    """Its group is closed."""
    UNMATCHED = "unmatched"
    """Nobody can have ordered an attempt of that name: it has no such replica, or its group is beyond reach."""
    CROWDED = "crowded"
    """Of its group so much is kept that there is no room for more."""
    INVALID = "invalid"
    """It is no reward; a dead letter holds it, unless there were too many of them."""


@dataclass(frozen=True, slots=True)
class GivenReward:
    """A valid record of `rewards`: what is asked of it while it is kept, and its bytes, that hold the rest."""

    sample_id: str
    reward: float
    num_turns: int
    """Of how many turns it has rewards."""
    value: bytes
    reference: RewardReference

    @classmethod
    def read(cls, value: bytes, offset: int) -> Self:
        """The record at this offset. Raises SchemaError for what is no reward."""
        require_size(value)
        reward = decode_as(Reward, value)
        reference = RewardReference(offset=offset, digest=record_digest(value))
        return cls(reward.sample_id, reward.reward, len(reward.turn_rewards), value, reference)

    def whole(self) -> Reward:
        """All of it."""
        return decode_as(Reward, self.value)

    def fits(self, num_turns: int) -> bool:
        """Whether a sample of so many turns can have this reward."""
        return self.num_turns in (0, num_turns)


def require_size(value: bytes) -> None:
    """Raise SchemaError for a record that is too large to be a reward."""
    if len(value) > most_reward_bytes:
        raise SchemaError(
            f"{len(value)} bytes; a reward has {most_reward_bytes} at most, so give fewer components"
        )


def attempt_named(text: str) -> tuple[int, int, int] | None:
    """(group, replica, attempt) of a sample's id; None for what is no id of a training sample."""
    found = _sample_id.fullmatch(text)
    if found is None:
        return None
    group, replica, attempt = (int(number) for number in found.groups())
    return (group, replica, attempt) if sample_id(group, replica, attempt) == text else None


def kept_bytes(num_replicas: int) -> int:
    """How much is kept of a group of so many replicas: some hundred rewards for each of them."""
    return num_replicas * _kept_bytes_of_replica


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
    """The rewards of samples of groups that are not closed, in the order in which they were read.

    Of a sample the first reward counts whose number of turn rewards fits. So a second one of the same number is never
    needed, nor any after one without turn rewards; at most four differ. Which counts is then a function of the topic
    alone, whenever its sample is read, or its task.

    Of a group `most_bytes` are kept. Once a reward has found no room no later one of its group is kept, however small:
    so whoever reads again from the first that is kept comes to the same.

    Example: of sample g3.r0.a0 come rewards of 2, 2, 0 and 3 turns. The first and the third are kept. Its record then
    has 2 turns: the first counts. Had it 3 turns, the third did, which speaks of the whole response.
    """

    most_bytes: int = kept_bytes(1)
    _of_group: dict[int, dict[str, list[GivenReward]]] = field(default_factory=dict)
    _bytes_of_group: Counter[int] = field(default_factory=Counter)
    _crowded: set[int] = field(default_factory=set)

    def __len__(self) -> int:
        return sum(len(kept) for of_sample in self._of_group.values() for kept in of_sample.values())

    def add(self, group: int, given: GivenReward) -> RewardOutcome:
        """Keep one: KEPT, or DOUBLED or CROWDED for one that can count for nothing."""
        kept = self._of_group.get(group, {}).get(given.sample_id, [])
        numbers = {earlier.num_turns for earlier in kept}
        if 0 in numbers or given.num_turns in numbers or len(kept) == most_kept:
            return RewardOutcome.DOUBLED
        num_bytes = self._bytes_of_group[group] + len(given.value) + _bytes_beside_value
        if group in self._crowded or num_bytes > self.most_bytes:
            self._crowded.add(group)
            return RewardOutcome.CROWDED
        self._bytes_of_group[group] = num_bytes
        self._of_group.setdefault(group, {})[given.sample_id] = [*kept, given]
        return RewardOutcome.KEPT

    def of(self, group: int, name: str, num_turns: int) -> GivenReward | None:
        """The one that counts for a sample of so many turns; None while there is none."""
        kept = self._of_group.get(group, {}).get(name, ())
        return next((given for given in kept if given.fits(num_turns)), None)

    def forget(self, groups: Iterable[int]) -> None:
        """These groups are closed."""
        for group in groups:
            self._of_group.pop(group, None)
            self._bytes_of_group.pop(group, None)
            self._crowded.discard(group)

    def mark(self, position: int, closing: Iterable[int] = ()) -> int:
        """Where a new reader must begin to find all that is kept, once `closing` are closed; else `position`."""
        gone = set(closing)
        # They were read in the order of the topic, so the first of each group comes first.
        firsts = (
            next(iter(of_sample.values()))[0].reference.offset
            for group, of_sample in self._of_group.items()
            if group not in gone
        )
        return min(firsts, default=position)
