"""I17: what samples that came without a reward were given, against the topic of rewards, worked out anew.

Of each sample the first reward counts whose number of turn rewards fits, among the first four that differ in it: later
ones of the same number, and any behind one without turn rewards, count for nothing. Whether its task or its sample was
on the log before it makes no difference. What never counts is a reward for a replica that groups do not have, for a
group that was closed or beyond reach when the reward was read, and for a group of which as much is there as has room.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import TYPE_CHECKING

from consumers.audit.reward_reach import RoomOfGroups
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
_most_bytes = 1 << 16
_name = re.compile(r"g(0|[1-9][0-9]{0,17})\.r(0|[1-9][0-9]{0,8})\.a(0|[1-9][0-9]{0,8})")
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
    _of_sample: dict[str, list[StoredReward]] = field(default_factory=dict)
    _room: RoomOfGroups = field(default_factory=RoomOfGroups)
    _of_unknown_reach: set[int] = field(default_factory=set)
    """Groups of which nobody can say any more whether a reward came too early to count."""

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
        named = _name.fullmatch(reward.sample_id)
        if named is None or len(value) > _most_bytes:
            return
        group, replica = int(named[1]), int(named[2])
        if not self._is_of_use(record.offset, group, replica):
            return
        stored = self._of_sample.get(reward.sample_id, [])
        numbers = {earlier.num_turns for earlier in stored}
        if 0 in numbers or len(reward.turn_rewards) in numbers or len(stored) == _most_numbers:
            return
        if self._room.takes(group, value, self.ledger.config.num_replicas):
            digest = sha256(value).digest()[:num_digest_bytes]
            new = StoredReward(record.offset, digest, len(reward.turn_rewards), reward.reward)
            self._of_sample[reward.sample_id] = [*stored, new]

    def _is_of_use(self, offset: int, group: int, replica: int) -> bool:
        """Whether a reward there could be one for a sample of that group, as the ledger stood when it was read."""
        ledger = self.ledger
        if ledger.config.num_replicas is not None and replica >= ledger.config.num_replicas:
            return False
        closed = ledger.closed_groups.get(group)
        if closed is not None and closed[0] <= ledger.reading_of_rewards.entry(offset):
            return False
        is_within = group < ledger.reading_of_rewards.end_of_reach(offset, ledger.config)
        if not is_within and not ledger.is_complete:
            # Records that are missing may have closed higher groups, or raised alpha.
            self._of_unknown_reach.add(group)
        return is_within

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
        if named.offset < self.cut or sample.group_id in self._of_unknown_reach:
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
            if self._may_have_been_full(sample.group_id) or sample.group_id in self._of_unknown_reach:
                self.ledger.checks.late_rewards.num_unchecked += 1
                return
            self._find(
                "given up as unrewarded, though its reward had been read",
                place,
                judged,
                "no reward",
                first.offset,
            )

    def _first(self, sample: Sample) -> StoredReward | None:
        fitting = (0, sample.num_turns)
        stored = self._of_sample.get(sample.sample_id, ())
        return next((each for each in stored if each.num_turns in fitting), None)

    def _may_have_been_full(self, group: int) -> bool:
        """Whether rewards of this group can have stood before the cut: they may have left no room for a later one."""
        end = self.ledger.reading_of_rewards.end_of_reach(self.cut - 1, self.ledger.config)
        return self.cut > 0 and group < end

    def _find(self, message: str, place: Place, judged: Judged, expected: object, found: object) -> None:
        name = self.ledger.entries[judged.entry].name
        self.ledger.checks.late_rewards.find(
            f"{message}, by {name}",
            place=place,
            record_id=judged.sample_id,
            expected=expected,
            found=found,
        )
