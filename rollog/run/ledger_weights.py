"""The weights of a recorded run: the versions that its ledger names, their bytes checked."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from rollog.kernel.versions.files import remove_files

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from consumers.named_weights import NamedWeights
    from rollog.kernel.weights import WeightsStore


class LedgerWeights:
    """The versions of the ledger, and their files from the store (`consumers.verification.ports.PublishedWeights`)."""

    def __init__(self, named: NamedWeights, store: WeightsStore, downloads: Path) -> None:
        self._named = named
        self._store = store
        self._downloads = downloads

    def digest(self, version: int) -> str | None:
        """The sha256 that the ledger has; None where there is no such version."""
        return self._named.weights.get(version)

    @contextmanager
    def file(self, version: int) -> Iterator[Path]:
        """The file or manifest, all bytes checked; what was fetched is deleted afterwards.

        Raises WeightsError, for a version that was let go VersionPruned.
        """
        notice = self._named.of(version)
        path = self._store.fetch(notice, self._downloads)
        try:
            yield path
        finally:
            if path.parent == self._downloads:
                remove_files(path)
