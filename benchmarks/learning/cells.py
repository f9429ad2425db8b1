"""The training runs of the learning experiment. Pure.

A cell is one run. All cells of a seed share the order of the prompts, so that two of them that differ in nothing but
lag, or but the correction, are compared seed by seed.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

uncorrected_from_lag = 4
"""Smallest injected lag at which runs without correction are made as well."""
uncorrected_algorithms = ("grpo", "ppo", "tis", "cispo", "topr")
"""Those algorithms. Without correction `decoupled_ppo` is `ppo`: its weight proximal / mu is 1."""
real_algorithms = ("grpo", "ppo", "decoupled_ppo", "tis", "cispo", "topr")


class Part(StrEnum):
    """Where a run takes place, and what its lag is: always exactly so much, or bounded by alpha."""

    INJECTED = "injected"
    REAL = "real"


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """What a run is apart from its seed. `lag` is alpha in the real loop."""

    part: Part
    algorithm: str
    lag: float
    is_corrected: bool = True

    @property
    def name(self) -> str:
        """As it stands in the names of figures."""
        place = f"{'alpha' if self.part is Part.REAL else 'lag'}_{self.lag:g}"
        return f"learning.{self.part}.{self.algorithm}.{place}{'' if self.is_corrected else '.uncorrected'}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One run."""

    variant: Variant
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What came of one run: held-out accuracy by version, greedy, and that of sampling from the last version.

    `effective_sample_size` is that of a batch before the first update, averaged over the steps; None: not known.
    """

    accuracy: Mapping[int, float]
    sampled_accuracy: float
    effective_sample_size: float | None
    seconds: float

    @property
    def final_accuracy(self) -> float:
        """Of the last version."""
        return self.accuracy[max(self.accuracy)]

    def steps_to(self, target: float) -> int | None:
        """The first evaluated version at or above `target`; None where there is none."""
        return next((version for version in sorted(self.accuracy) if self.accuracy[version] >= target), None)


Runs = dict[Cell, Measured]


def injected_cells(algorithms: Sequence[str], lags: Sequence[int], seeds: Sequence[int]) -> Iterator[Cell]:
    """The runs with an injected lag, lag by lag in the order given, and in each of them seed by seed.

    So a measurement that is cut off has few lags or few seeds of every algorithm, and not few algorithms.
    """
    for lag in lags:
        yield from _cells(Part.INJECTED, algorithms, lag, seeds)
        if lag >= uncorrected_from_lag:
            ablated = [name for name in algorithms if name in uncorrected_algorithms]
            yield from _cells(Part.INJECTED, ablated, lag, seeds, is_corrected=False)


def real_cells(algorithms: Sequence[str], alphas: Sequence[float], seeds: Sequence[int]) -> Iterator[Cell]:
    """The runs of the real loop, alphas in turns."""
    for seed in seeds:
        for algorithm in algorithms:
            for alpha in alphas:
                yield from _cells(Part.REAL, [algorithm], alpha, [seed])


def measure(
    cells: Iterable[Cell],
    known: Runs,
    run: Mapping[Part, Callable[[Cell], Measured]],
    on_measured: Callable[[Cell, Runs], None],
) -> Runs:
    """All of `known`, and every cell that is not among them, measured; `on_measured` is told after each."""
    runs = dict(known)
    for cell in cells:
        if cell not in runs:
            runs[cell] = run[cell.variant.part](cell)
            on_measured(cell, runs)
    return runs


def in_order(cell: Cell) -> tuple[str, str, bool, float, int]:
    """Sorts cells: part, algorithm, with correction first, lag, seed."""
    variant = cell.variant
    return variant.part, variant.algorithm, not variant.is_corrected, variant.lag, cell.seed


def _cells(
    part: Part, algorithms: Sequence[str], lag: float, seeds: Sequence[int], *, is_corrected: bool = True
) -> Iterator[Cell]:
    for seed in seeds:
        for algorithm in algorithms:
            variant = Variant(part=part, algorithm=algorithm, lag=lag, is_corrected=is_corrected)
            yield Cell(variant=variant, seed=seed)
