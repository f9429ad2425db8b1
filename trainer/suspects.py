"""Which groups are at fault when training fails: what is known of each, and what is to be done next. Pure.

Groups are known by keys, which name their members: another attempt at a replica makes it another group.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

most_failures = 2
most_compared = 2
"""How many unsuspected groups are tried where every suspect fails: one that goes well shows that the engine works."""


@dataclass(slots=True)
class Suspicion:
    """What is known of one group at one version. The counts are of the present round; guilt stays."""

    num_failures: int = 0
    """Failed steps it was in."""
    num_trials: int = 0
    """Trials begun on it alone."""
    is_cleared: bool = False
    said: str | None = None
    """What training on it alone failed with."""
    is_guilty: bool = False

    @property
    def outcome(self) -> str | None:
        """What came of its trials, where it was no good: what was said, or that the process died twice in them."""
        died = self.num_trials >= most_failures and not self.is_cleared
        return self.said or ("the process died" if died else None)

    @property
    def is_tried(self) -> bool:
        """Whether nothing more is to be learnt of it in this round."""
        return self.is_cleared or self.outcome is not None

    @property
    def is_in_round(self) -> bool:
        """Whether the present round of trials is about it: as a suspect, or for comparison with one."""
        return not self.is_guilty and (self.num_failures >= most_failures or self.num_trials > 0)


@dataclass(frozen=True, slots=True)
class Train:
    """Nothing is known against this batch."""


@dataclass(frozen=True, slots=True)
class TryAlone:
    """Each of these is trained alone first, from the same state."""

    keys: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CloseGuilty:
    """Training fails on these, alone; with what it said."""

    said: dict[str, str]


@dataclass(frozen=True, slots=True)
class NotAtFault:
    """No group is guilty: all of them fail alone, or none does. With the first failure, if there is one."""

    said: str | None


Move = Train | TryAlone | CloseGuilty | NotAtFault


@dataclass(slots=True)
class Suspects:
    """The groups that were in failed steps from one version on.

    | a group is | reached by | then |
    | --- | --- | --- |
    | unsuspected | | it is trained |
    | suspect | two steps with it failed | it is tried alone before a batch with a suspect is trained |
    | compared | it is ready, and every suspect failed | it is tried alone, to see whether anything can be trained |
    | tried | its trial went well or failed, or the process died in two | it waits for the others of the round |
    | guilty | it failed, and another one of the round went well | it is closed, and stays guilty |

    A round ends when every suspect that is still ready was tried. Where all of several failed, or none did, samples are
    not at fault: whoever was in the round is unsuspected again. A single one that fails, with nothing to compare it
    with, is guilty while nobody else is: a broken engine costs at most one group for each version. Suspects that were
    closed or changed before they were tried hold no round up; what is known of those that were tried counts.

    Example: groups 3 and 4 were in two failed steps. With 3 alone a step goes well, with 4 it fails: 4 is guilty. Had
    both failed, group 5, ready beside them, would have been tried: had it gone well, both were guilty, else none.
    """

    groups: dict[str, Suspicion] = field(default_factory=dict)

    def begin(self, batch: Collection[str]) -> None:
        """A step with these begins: until it ends well it counts as failed."""
        for key in batch:
            self.groups.setdefault(key, Suspicion()).num_failures += 1

    def take_back(self, batch: Collection[str]) -> None:
        """The step with these ends for a reason of its own: it does not count."""
        for key in batch:
            self.groups[key].num_failures -= 1

    def next_move(self, batch: Collection[str], ready: Sequence[str]) -> Move:
        """What to do before `batch` is trained, where `ready` are all complete groups. Ends a round that is over."""
        closing = {
            key: found.said or "" for key in ready if (found := self.groups.get(key)) and found.is_guilty
        }
        if closing:
            return CloseGuilty(closing)
        if not any(key in self.groups and self.groups[key].is_in_round for key in batch):
            return Train()
        untried = self._untried(batch, ready)
        return TryAlone(untried) if untried else self._end_round()

    def begin_trial(self, key: str) -> None:
        """A step with this group alone begins."""
        self.groups.setdefault(key, Suspicion()).num_trials += 1

    def take_back_trial(self, key: str) -> None:
        """The trial ends for a reason of its own: it does not count."""
        self.groups[key].num_trials -= 1

    def lost(self, key: str) -> None:
        """The trial failed and took the engine along: as if the process had died in it, one alone proves nothing."""
        self.groups[key].said = None

    def tried(self, key: str, said: str | None) -> None:
        """The trial ended: well, or with an error that said this."""
        self.groups[key].said = said
        self.groups[key].is_cleared = said is None

    @property
    def _round(self) -> dict[str, Suspicion]:
        return {key: found for key, found in self.groups.items() if found.is_in_round}

    def _untried(self, batch: Collection[str], ready: Sequence[str]) -> tuple[str, ...]:
        """Whom to try: suspects that are still ready; then, while all of them fail, others to compare them with."""
        members = self._round
        untried = tuple(key for key in ready if key in members and not members[key].is_tried)
        num_compared = sum(found.num_failures < most_failures for found in members.values())
        if untried or num_compared >= most_compared or any(found.is_cleared for found in members.values()):
            return untried
        others = [key for key in ready if key not in members]
        return tuple(sorted(others, key=lambda key: key not in batch)[:1])

    def _end_round(self) -> Move:
        tried = {key: found for key, found in self._round.items() if found.is_tried}
        failed = {key: found.outcome for key, found in tried.items() if found.outcome is not None}
        is_anyone_guilty = any(found.is_guilty for found in self.groups.values())
        is_told_apart = len(failed) < len(tried) or (len(tried) == 1 and not is_anyone_guilty)
        for key in self._round:
            self.groups[key] = Suspicion()
        if not failed or not is_told_apart:
            return NotAtFault(next(iter(failed.values()), None))
        for key, said in failed.items():
            self.groups[key] = Suspicion(said=said, is_guilty=True)
        return CloseGuilty(failed)
