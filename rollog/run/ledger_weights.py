"""The weights of a recorded run: the versions that its ledger names, their bytes checked."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from rollog.kernel.errors import WeightsError
from rollog.kernel.versions.files import remove_files

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from rollog.kernel.weights import WeightsStore
    from schemas import WeightVersion


class LedgerWeights:
    """The versions of the ledger, and their files from the store (`consumers.verification.ports.PublishedWeights`)."""

    def __init__(
        self,
        sha256: Mapping[int, str],
        notices: Mapping[int, WeightVersion],
        store: WeightsStore,
        downloads: Path,
    ) -> None:
        self._sha256 = sha256
        self._notices = notices
        self._store = store
        self._downloads = downloads

    def digest(self, version: int) -> str | None:
        """The sha256 that the ledger has; None where there is no such version."""
        return self._sha256.get(version)

    @contextmanager
    def file(self, version: int) -> Iterator[Path]:
        """The file or manifest, all bytes checked; what was fetched is deleted afterwards. Raises WeightsError."""
        notice = self._notices.get(version)
        if notice is None:
            raise WeightsError(f"no notice names the weights that the ledger has under version {version}")
        path = self._store.fetch(notice, self._downloads)
        try:
            yield path
        finally:
            if path.parent == self._downloads:
                remove_files(path)
