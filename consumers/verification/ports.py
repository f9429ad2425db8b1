"""What a verification needs from outside: a model that computes again, and the weights of the run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

    from consumers.verification.pieces import Piece
    from schemas import Float32Array


class Scorer(Protocol):
    """Computes log-probabilities of given tokens by prefill, at the temperature of the run."""

    def load(self, path: Path) -> None:
        """Take the weights of a file of one version. Raises WeightsError."""
        ...

    def logprobs(self, pieces: Sequence[Piece]) -> list[Float32Array]:
        """One entry per response token of each piece; those that are not compared may hold anything."""
        ...


class PublishedWeights(Protocol):
    """The versions of a run."""

    def digest(self, version: int) -> str | None:
        """The sha256 that the ledger has; None where there is no such version."""
        ...

    def file(self, version: int) -> AbstractContextManager[Path]:
        """The version's file, with the sha256 that the ledger has, for the length of the block. Raises WeightsError."""
        ...
