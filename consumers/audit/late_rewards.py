"""I17: what samples that came without a reward were given, against the topic of rewards, worked out anew.

Of each sample the first reward counts whose number of turn rewards fits, among the first four that differ in it: later
ones of the same number, and any behind one without turn rewards, count for nothing.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import TYPE_CHECKING

from consumers.audit.samples import num_digest_bytes
from schemas import Disposition, Reward, Sample
from schemas.codec import SchemaError, decode_as

if TYPE_CHECKING:
    from consumers.audit.findings import Place
    from consumers.audit.judged import Judged
    from consumers.audit.ledger_index import LedgerIndex
    from rollog.kernel.broker.ports import Record
    from schemas import RewardReference

_most_numbers = 4
_must_be_rewarded = frozenset({Disposition.TRAINED, Disposition.FILTERED})


@dataclass(frozen=True, slots=True)
class StoredReward:
    """One valid record of `rewards`."""

    offset: int
    digest: bytes
    num_turns: int
    value: float


@dataclass(slots=True)
class LateRewardChecks:
    """Takes in the records of `rewards`, then every sample that waited, with what was decided about it.

    `cut` is the first offset that is still there: what stood before it is not checked.
    """

    ledger: LedgerIndex
    topic: str
    cut: int = 0
    num_unreadable: int = 0
    num_records: int = 0
    _of_sample: defaultdict[str, list[StoredReward]] = field(default_factory=lambda: defaultdict(list))

    def add(self, record: Record) -> None:
        """One reward."""
        self.num_records += 1
        value = record.value or b""
        try:
            if record.unread is not None:
                raise SchemaError(record.unread.reason)  # noqa: TRY301 - one way for all that is no reward
            reward = decode_as(Reward, value)
        except SchemaError:
            self.num_unreadable += 1
            return
        stored = self._of_sample[reward.sample_id]
        numbers = {earlier.num_turns for earlier in stored}
        if 0 in numbers or len(reward.turn_rewards) in numbers or len(stored) == _most_numbers:
            return
        digest = sha256(value).digest()[:num_digest_bytes]
        stored.append(StoredReward(record.offset, digest, len(reward.turn_rewards), reward.reward))

    def judged(self, sample: Sample, judged: Judged, place: Place) -> Sample:
        """A sample as it was judged: with the reward that the ledger names for it, if that is there."""
        named = self.ledger.late_rewards.pop((place.partition, place.offset), None)
        if not sample.awaits_reward or sample.reward is not None:
            if named is not None:
                self._find(
                    "a late reward is named for a sample that brought its own",
                    place,
                    judged,
                    "none",
                    named.offset,
                )
            return sample
        self.ledger.checks.late_rewards.num_checked += 1
        if named is None:
            self._without(sample, judged, place)
            return sample
        return self._with(sample, judged, place, named)

    def _with(self, sample: Sample, judged: Judged, place: Place, named: RewardReference) -> Sample:
        if named.offset < self.cut:
            self.ledger.checks.late_rewards.num_unchecked += 1
            return sample
        entry = self.ledger.entries[judged.entry]
        first = self._first(sample)
        if first is None or (first.offset, first.digest) != (named.offset, named.digest):
            expected = "no reward" if first is None else f"offset {first.offset}, {first.digest.hex()}"
            found = f"offset {named.offset}, {named.digest.hex()}"
            self._find("not the first valid reward of its sample", place, judged, expected, found)
            return sample
        if not named.offset < entry.record.reward_position:
            self._find(
                "its reward stands behind what the trainer had read",
                place,
                judged,
                f"an offset below {entry.record.reward_position}",
                named.offset,
            )
        if judged.disposition is Disposition.UNREWARDED:
            self._find("given up as unrewarded, with a reward", place, judged, "no reward", named.offset)
        return replace(sample, reward=first.value)

    def _without(self, sample: Sample, judged: Judged, place: Place) -> None:
        if judged.disposition in _must_be_rewarded:
            self._find(
                f"{judged.disposition}, but the ledger names no reward for it", place, judged, "one", "none"
            )
            return
        entry, first = self.ledger.entries[judged.entry], self._first(sample)
        was_read = first is not None and first.offset < entry.record.reward_position
        if judged.disposition is Disposition.UNREWARDED and first is not None and was_read:
            self._find(
                "given up as unrewarded, though its reward had been read",
                place,
                judged,
                "no reward",
                first.offset,
            )

    def _first(self, sample: Sample) -> StoredReward | None:
        fitting = (0, sample.num_turns)
        return next((each for each in self._of_sample[sample.sample_id] if each.num_turns in fitting), None)

    def _find(self, message: str, place: Place, judged: Judged, expected: object, found: object) -> None:
        name = self.ledger.entries[judged.entry].name
        self.ledger.checks.late_rewards.find(
            f"{message}, by {name}",
            place=place,
            record_id=judged.sample_id,
            expected=expected,
            found=found,
        )
