"""How long protected groups hold training up: at most `freshness.patience_seconds` for each stale replica."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rollog.rules.freshness import newest_version_while_protected
from rollog.rules.members import is_protected

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable

    from rollog.rules.headers import SampleHeader
    from rollog.rules.ledger_state import LedgerState
    from rollog.settings.groups import FreshnessConfig


@dataclass(slots=True)
class ProtectionHold:
    """Since when each (group, replica) holds training up, and of how many replicas each group has."""

    ledger: LedgerState
    freshness: FreshnessConfig
    waits: defaultdict[int, int] = field(default_factory=lambda: defaultdict(int))
    holding: dict[int, float] = field(default_factory=dict)
    """The groups that hold training up, as the last look found them, and for how many seconds at most."""
    _since: dict[tuple[int, int], float] = field(default_factory=dict)

    def is_held(
        self,
        now_seconds: float,
        settled: Container[int],
        fresh_of: Callable[[int], Iterable[SampleHeader]],
    ) -> bool:
        """Whether a protected group forbids the next version for now; `settled` ones are complete or closed."""
        self.holding.clear()
        for group, stale in self.ledger.stale_versions.items():
            if group in settled or not is_protected(group, self.ledger, self.freshness):
                continue
            if not self._would_outrun(stale, fresh_of(group)):
                continue
            # Every replica, also once the answer is known: each has its own time, which begins at this look.
            left = max(self._seconds_left(group, replica, now_seconds) for replica, _ in stale)
            if left > 0:
                self.holding[group] = left
        return bool(self.holding)

    def forget(self, closed: set[int]) -> None:
        """These groups are closed."""
        for group in closed:
            self.waits.pop(group, None)
        self._since = {key: since for key, since in self._since.items() if key[0] not in closed}

    def _seconds_left(self, group: int, replica: int, now_seconds: float) -> float:
        """How long training still waits for a replica; 0 or less where it does not any more."""
        if (group, replica) not in self._since:
            self._since[(group, replica)] = now_seconds
            self.waits[group] += 1
        return self.freshness.patience_seconds - (now_seconds - self._since[(group, replica)])

    def _would_outrun(self, stale: list[tuple[int, int]], fresh: Iterable[SampleHeader]) -> bool:
        """Whether the next version would make stale what the group has, or has begun since it is protected.

        Its new attempts begin with the version at which it became protected, or a later one.
        """
        versions = [version for _, version in stale[self.freshness.protect_after - 1 :][:1]]
        versions += [header.first_version for header in fresh if header.first_version is not None]
        return self.ledger.version + 1 > newest_version_while_protected(min(versions), self.ledger.alpha)
