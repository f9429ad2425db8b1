"""Samples that wait for their reward: since when, and which rewards are kept for them and for those to come."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from rollog.rules.late_rewards import KeptRewards

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from rollog.rules.headers import SampleHeader
    from trainer.buffer.pending import Place


@dataclass(slots=True)
class RewardWaits:
    """The fresh samples without a reward, by group.

    | a waiting sample becomes | when |
    | --- | --- |
    | candidate | the reward that counts for it is read, before it or after it |
    | duplicate, redundant, stale | as any other |
    | unrewarded | `deadline_seconds` after this trainer saw it first, if all rewards written until then are read |

    A new trainer counts the seconds anew: a time when nobody read rewards is nobody's fault.
    """

    deadline_seconds: float = math.inf
    kept: KeptRewards = field(default_factory=KeptRewards)
    _of_group: defaultdict[int, dict[Place, SampleHeader]] = field(default_factory=lambda: defaultdict(dict))
    _since: dict[Place, float] = field(default_factory=dict)

    def __len__(self) -> int:
        return sum(map(len, self._of_group.values()))

    def with_reward(self, header: SampleHeader) -> SampleHeader:
        """The header with the reward that counts for it, where that was read already."""
        if not header.is_waiting:
            return header
        found = self.kept.of(header.group_id, header.sample_id, header.num_turns)
        return header if found is None else replace(header, reward=found.reward, late_reward=found)

    def add(self, header: SampleHeader) -> None:
        """A fresh one begins to wait, or goes on waiting."""
        self._of_group[header.group_id][header.place] = header

    def of(self, group: int) -> list[SampleHeader]:
        """Those of a group."""
        return list(self._of_group.get(group, {}).values())

    @property
    def groups(self) -> list[int]:
        """Groups with one."""
        return [group for group, waiting in self._of_group.items() if waiting]

    @property
    def replicas(self) -> Mapping[int, frozenset[int]]:
        """The replicas that wait, by group."""
        return {group: frozenset(header.replica for header in self.of(group)) for group in self.groups}

    def end(self, header: SampleHeader) -> None:
        """It waits no longer."""
        self._of_group[header.group_id].pop(header.place, None)

    def end_group(self, group: int) -> None:
        """Nothing of this group waits any longer."""
        self._of_group.pop(group, None)

    def end_all(self) -> None:
        """Nothing waits, until `add` says so again; since when stays known."""
        self._of_group.clear()

    def look(self, now_seconds: float) -> None:
        """Those that are new wait from now on."""
        places = [place for waiting in self._of_group.values() for place in waiting]
        self._since = {place: self._since.get(place, now_seconds) for place in places}

    def longest_seconds(self, now_seconds: float) -> float:
        """How long the one waits that waits longest; 0 without any."""
        return max((now_seconds - since for since in self._since.values()), default=0.0)

    def over(self, now_seconds: float) -> Iterator[SampleHeader]:
        """Those whose time was over then."""
        for waiting in self._of_group.values():
            for place, header in waiting.items():
                if now_seconds - self._since.get(place, math.inf) >= self.deadline_seconds:
                    yield header

    def forget(self, closed: Iterable[int]) -> None:
        """These groups are closed: no reward counts for them any more."""
        self.kept.forget(closed)
