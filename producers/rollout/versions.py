"""The policy versions a worker knows: the one in service, and those committed after it. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from schemas import WeightVersion

most_digests = 4096
"""Of how many versions the digests are known."""
_most_rivals = 8
"""Notices of one version: most are strangers'."""


class KnownVersions:
    """Which version is `served`, which one to load next, and the digests of all that were ever put in service.

    Anybody may be able to write notices. Versions count up by one, so one that is further ahead is nobody's. Of several
    notices of one version the first counts, until it is disowned or cannot be loaded: weights that a store has lost are
    published again, with another notice.
    """

    def __init__(self) -> None:
        self.served: WeightVersion | None = None
        self._notices: dict[int, list[WeightVersion]] = {}
        self._digests: dict[int, str] = {}

    @property
    def _newest(self) -> WeightVersion | None:
        """The newest version, if it is newer than the served one."""
        return self._notices[max(self._notices)][0] if self._notices else None

    def digest_of(self, version: int) -> str:
        """What segments carry of a version that was put in service."""
        return self._digests[version]

    def learn_digests(self, digests: Mapping[int, str]) -> None:
        """What others' segments carry of versions that were not served here; those that are known stay."""
        for version, digest in digests.items():
            if version not in self._digests:
                self._note(version, digest)

    def contradicts(self, version: int, digest: str) -> bool:
        """Whether a version is known, with other weights than these."""
        return self._digests.get(version, digest) != digest

    @property
    def num_digests(self) -> int:
        """Versions whose digests are known."""
        return len(self._digests)

    def _note(self, version: int, digest: str) -> None:
        """Know one more; beyond the most the one that was noted first is forgotten."""
        self._digests[version] = digest
        if len(self._digests) > most_digests:
            del self._digests[next(iter(self._digests))]

    def refused(self, notice: WeightVersion) -> str | None:
        """Why the trainer cannot have written this notice now; None where it can. The first one read may be any."""
        known = [*self._notices, *([] if self.served is None else [self.served.version])]
        if known and notice.version > max(known) + 1:
            return f"version {notice.version}; the one after {max(known)} is {max(known) + 1}"
        return None

    def add(self, notice: WeightVersion) -> bool:
        """Note a committed version; whether it is newer than the served one. What is refused changes nothing."""
        if self.refused(notice) or (self.served is not None and notice.version <= self.served.version):
            return False
        rivals = self._notices.setdefault(notice.version, [])
        if notice not in rivals and len(rivals) < _most_rivals:
            rivals.append(notice)
        return True

    def disown(self, notice: WeightVersion) -> None:
        """Forget a notice that is not the trainer's; the version in service stays."""
        rivals = [known for known in self._notices.pop(notice.version, []) if known != notice]
        if rivals:
            self._notices[notice.version] = rivals

    def target(self, pinned: Collection[int]) -> WeightVersion | None:
        """The version to fetch now: the newest, unless tokens are to be made of a known one before it."""
        waited_for = [version for version in pinned if version in self._notices]
        return self._notices[min(waited_for)][0] if waited_for else self._newest

    def load_begins(self, target: WeightVersion) -> None:
        """Note the digest before the first token under this version can arrive."""
        self._note(target.version, target.digest)

    def loaded(self, notice: WeightVersion) -> None:
        """The engine serves this version."""
        self.served = notice
        self._notices = {
            version: rivals for version, rivals in self._notices.items() if version > notice.version
        }

    def fetch_failed(self, notice: WeightVersion) -> None:
        """Another notice of this version comes first now, if there is one; the served version stays."""
        rivals = self._notices.get(notice.version, [])
        if notice in rivals:
            rivals.remove(notice)
            rivals.append(notice)

    def load_failed(self, notice: WeightVersion) -> None:
        """No version is in service: the engine may hold half of the new weights."""
        self.served = None
        rivals = self._notices.setdefault(notice.version, [])
        if notice in rivals:
            rivals.remove(notice)
        rivals.append(notice)
