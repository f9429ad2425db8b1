"""Record of the `weights` topic: the notice that a policy version exists and where its file is."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightVersion:
    """A committed policy version. `name` is a file name inside the run's weights store, never a path."""

    version: int
    sha256: str
    name: str
    num_bytes: int
    format: str = "safetensors"

    @property
    def digest(self) -> str:
        """The 16 hexadecimal digits that segments carry."""
        return self.sha256[:16]
