"""What one worker made under one version: the figures of its differences, and what is kept of it to look again."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from consumers.verification.rule import is_group_off, is_sample_off, num_beyond

if TYPE_CHECKING:
    from collections.abc import Iterable

    from consumers.verification.pieces import Piece
    from consumers.verification.rule import Differences, Fit, Tolerances
    from schemas import Float32Array

GroupName = tuple[int, str]
"""Version and worker."""

most_suspects = 16
"""Samples of a group that are off and are tried under other versions, those furthest off."""
_most_named = 100


@dataclass(frozen=True, slots=True, eq=False)
class Compared:
    """One piece and its differences: recomputed minus recorded, one per compared token."""

    piece: Piece
    differences: Differences

    @property
    def furthest(self) -> float:
        """The largest |difference|; infinite where one is not a number."""
        largest = float(np.max(np.abs(self.differences)))
        return largest if np.isfinite(largest) else float("inf")


def compared(piece: Piece, logprobs: Float32Array) -> Compared:
    """A piece beside recomputed log-probabilities, one per response token."""
    chosen = piece.is_compared
    return Compared(piece, logprobs[chosen].astype(np.float64) - piece.recorded[chosen].astype(np.float64))


@dataclass(slots=True, kw_only=True)
class Group:
    """Figures of what one worker made under one version. `neighbours` are fits under the version before and after."""

    version: int
    worker_id: str
    num_samples: int = 0
    num_tokens: int = 0
    num_beyond: int = 0
    num_off: int = 0
    total: float = 0.0
    total_absolute: float = 0.0
    largest: float = 0.0
    neighbours: dict[int, Fit] = field(default_factory=dict)
    off_samples: list[str] = field(default_factory=list)
    suspects: list[Compared] = field(default_factory=list)

    @property
    def mean(self) -> float:
        """Mean of the differences."""
        return self.total / self.num_tokens if self.num_tokens else 0.0

    @property
    def mean_absolute(self) -> float:
        """Mean of |difference|."""
        return self.total_absolute / self.num_tokens if self.num_tokens else 0.0

    def add(self, found: Compared, tolerances: Tolerances) -> None:
        """Count one more piece."""
        differences = found.differences
        self.num_samples += 1
        self.num_tokens += len(differences)
        self.num_beyond += num_beyond(differences, tolerances)
        self.total += float(np.sum(differences))
        self.total_absolute += float(np.sum(np.abs(differences)))
        self.largest = max(self.largest, found.furthest)
        if is_sample_off(differences, tolerances):
            self.num_off += 1
            if len(self.off_samples) < _most_named:
                self.off_samples.append(found.piece.sample_id)
            self.suspects.append(found)
            if len(self.suspects) > most_suspects:
                self.suspects.remove(min(self.suspects, key=lambda suspect: suspect.furthest))

    def is_off_as_a_whole(self, tolerances: Tolerances) -> bool:
        """Whether its differences are no noise taken together, or other weights explain them better."""
        return is_group_off(self.num_tokens, self.mean, self.mean_absolute, tolerances) or any(
            fit.is_better(tolerances) for fit in self.neighbours.values()
        )

    def is_told_apart(self, tolerances: Tolerances) -> bool | None:
        """Whether a label that is wrong by one version would show; None where no neighbour could be asked."""
        if not self.neighbours:
            return None
        return all(fit.is_told_apart(tolerances) for fit in self.neighbours.values())


def probes(pieces: Iterable[Piece], num_tokens_wanted: int) -> list[Piece]:
    """The first pieces of each worker that together have so many compared tokens."""
    chosen: list[Piece] = []
    num_tokens: Counter[str] = Counter()
    for piece in pieces:
        if num_tokens[piece.worker_id] < num_tokens_wanted:
            chosen.append(piece)
            num_tokens[piece.worker_id] += piece.num_compared
    return chosen
