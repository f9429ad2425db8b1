"""The policy versions a worker knows: the one in service, and those committed after it. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection

    from schemas import WeightVersion

_most_digests = 4096


class KnownVersions:
    """Which version is `served`, which one to load next, and the digests of all that were ever put in service."""

    def __init__(self) -> None:
        self.served: WeightVersion | None = None
        self._newest: WeightVersion | None = None
        self._notices: dict[int, WeightVersion] = {}
        self._digests: dict[int, str] = {}

    @property
    def served_version(self) -> int:
        """The version in service; there must be one."""
        assert self.served is not None
        return self.served.version

    @property
    def has_newer(self) -> bool:
        """Whether a newer version than the served one is committed."""
        if self._newest is None:
            return False
        return self.served is None or self._newest.version > self.served.version

    def digest_of(self, version: int) -> str:
        """What segments carry of a version that was put in service."""
        return self._digests[version]

    def add(self, notice: WeightVersion) -> bool:
        """Note a committed version; whether it is newer than the served one."""
        if self.served is not None and notice.version <= self.served.version:
            return False
        self._notices.setdefault(notice.version, notice)
        if self._newest is None or notice.version > self._newest.version:
            self._newest = notice
        return True

    def target(self, pinned: Collection[int]) -> WeightVersion | None:
        """The version to load now: the newest, unless tokens are still to be made of what is or comes before it."""
        if self._newest is None or not self.has_newer:
            return None
        # No worker goes back to a version: tasks pinned to the served one are generated first.
        if self.served is not None and self.served.version in pinned:
            return None
        waited_for = [version for version in pinned if version in self._notices]
        return self._notices[min(waited_for)] if waited_for else self._newest

    def load_begins(self, target: WeightVersion) -> None:
        """Note the digest before the first token under this version can arrive."""
        self._digests[target.version] = target.digest
        if len(self._digests) > _most_digests:
            del self._digests[next(iter(self._digests))]

    def loaded(self, notice: WeightVersion) -> None:
        """The engine serves this version."""
        self.served = notice
        self._notices = {
            version: known for version, known in self._notices.items() if version > notice.version
        }

    def load_failed(self, notice: WeightVersion) -> None:
        """No version is in service: the engine may hold half of the new weights."""
        self.served = None
        self._notices.setdefault(notice.version, notice)
