"""What a run's age costs its readers, above what an empty run costs them. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from benchmarks.harness.figures import Figure

if TYPE_CHECKING:
    from collections.abc import Mapping

    from benchmarks.growth.reading import Cost

most_bytes_per_sample = {"audit": 600.0, "lineage": 300.0, "prune": 300.0, "watch": 300.0, "durations": 300.0}
"""Targets: what lets a million samples be audited in 600 MB, and read by the others in 300."""
_megabyte = 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One reading of a run of `num_samples` trained samples, and of an empty run."""

    num_samples: int
    cost: Cost
    empty: Cost

    @property
    def extra_bytes(self) -> int:
        """Memory above the empty run's; none where there is less."""
        return max(0, self.cost.peak_bytes - self.empty.peak_bytes)


def growth_figures(by_reading: Mapping[str, list[Measured]]) -> list[Figure]:
    """Seconds, processor seconds and memory of each reading at each size, and the memory of one more sample."""
    return [
        figure
        for name, found in by_reading.items()
        for figure in (*(each for one in found for each in _at_one_size(name, one)), *_slope(name, found))
    ]


def _at_one_size(name: str, found: Measured) -> list[Figure]:
    at = f"growth.samples_{found.num_samples}.{name}"
    return [
        Figure(
            name=f"{at}.seconds",
            value=round(found.cost.seconds - found.empty.seconds, 3),
            unit="s above an empty run",
            ideal=0.0,
            higher_is_better=False,
        ),
        Figure(
            name=f"{at}.cpu_seconds",
            value=round(found.cost.cpu_seconds - found.empty.cpu_seconds, 3),
            unit="CPU s above an empty run",
            ideal=0.0,
            higher_is_better=False,
        ),
        Figure(
            name=f"{at}.memory",
            value=round(found.extra_bytes / _megabyte, 1),
            unit="MB at the peak, above an empty run",
            ideal=0.0,
            higher_is_better=False,
        ),
    ]


def _slope(name: str, found: list[Measured]) -> list[Figure]:
    """From the second largest size to the largest, so that buffers of a fixed size do not count."""
    if len(found) < 2:  # noqa: PLR2004 - a slope has two ends
        return []
    first, last = found[-2:]
    per_sample = (last.extra_bytes - first.extra_bytes) / (last.num_samples - first.num_samples)
    return [
        Figure(
            name=f"growth.{name}.bytes_per_sample",
            value=round(per_sample, 1),
            unit=f"bytes for each sample from {first.num_samples} to {last.num_samples}",
            target=most_bytes_per_sample.get(name),
            ideal=0.0,
            higher_is_better=False,
        )
    ]
