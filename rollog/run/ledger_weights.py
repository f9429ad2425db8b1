"""The weights of a recorded run: the versions that its ledger names, their bytes checked."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from rollog.kernel.versions.copies import VersionCopy

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
        self._copy = VersionCopy(downloads)

    def digest(self, version: int) -> str | None:
        """The sha256 that the ledger has; None where there is no such version."""
        return self._named.weights.get(version)

    @contextmanager
    def file(self, version: int) -> Iterator[Path]:
        """The file or manifest, all bytes checked, until another version is asked for.

        What is not read in place is one copy, which patches take on where versions are asked for in their order.
        Raises WeightsError, for a version that was let go VersionPruned.
        """
        path = self._store.bring(self._named.of(version), self._copy)
        try:
            yield path
        finally:
            if path.parent == self._copy.directory and self._copy.pair is None:
                path.unlink(missing_ok=True)
