"""Which runs of the learning experiment are asked for. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import get_args

from benchmarks.harness.demo_run import as_published
from benchmarks.learning.cells import Cell, Part, injected_cells, real_algorithms, real_cells
from rollog.settings.training import AlgorithmType

both = "both"


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What the options ask for; without algorithms those of each part, without steps the demo's."""

    first_seed: int
    part: str
    algorithms: tuple[str, ...] | None
    lags: tuple[int, ...]
    alphas: tuple[float, ...]
    num_seeds: int
    num_steps: int | None
    target: float

    @property
    def parts(self) -> frozenset[Part]:
        """Where runs take place."""
        return frozenset(each for each in Part if self.part in {each, both})

    @property
    def assignments(self) -> dict[str, object]:
        """What all runs have other than the demo, by dotted key."""
        return as_published if self.num_steps is None else {**as_published, "run.num_steps": self.num_steps}

    @property
    def libraries(self) -> tuple[str, ...]:
        """Modules whose versions matter."""
        of_all = ("torch", "transformers")
        return (*of_all, "deepspeed", "vllm") if Part.REAL in self.parts else of_all

    def cells(self) -> list[Cell]:
        """The runs, in the order in which they are made."""
        seeds = range(self.first_seed, self.first_seed + self.num_seeds)
        cells: list[Cell] = []
        if Part.INJECTED in self.parts:
            cells += injected_cells(self.algorithms or get_args(AlgorithmType), self.lags, seeds)
        if Part.REAL in self.parts:
            cells += real_cells(self.algorithms or real_algorithms, self.alphas, seeds)
        return cells
