"""What runs amount to: estimates over seeds, and figures that compare lags and corrections seed by seed. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING

from benchmarks.harness.figures import Figure, t_interval
from benchmarks.learning.cells import Part, Variant, in_order

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from benchmarks.learning.cells import Measured, Runs


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A mean over seeds and, where there are two or more, its 95 % interval (Student's t)."""

    mean: float
    interval: tuple[float, float] | None
    num_draws: int

    def __str__(self) -> str:
        """The mean and half of the interval's width."""
        if self.interval is None:
            return f"{self.mean:.3f}"
        return f"{self.mean:.3f} ± {(self.interval[1] - self.interval[0]) / 2:.3f}"


def estimate(values: Sequence[float]) -> Estimate:
    """The estimate of at least one value."""
    return Estimate(mean=fmean(values), interval=t_interval(values), num_draws=len(values))


def by_variant(runs: Runs) -> dict[Variant, dict[int, Measured]]:
    """The runs of each variant by seed; variants by part, algorithm, correction and lag."""
    found: dict[Variant, dict[int, Measured]] = {}
    for cell in sorted(runs, key=in_order):
        found.setdefault(cell.variant, {})[cell.seed] = runs[cell]
    return found


def figures_of(runs: Runs, target: float) -> list[Figure]:
    """Every variant's figures, then how lag and correction change the final accuracy, paired by seed."""
    variants = by_variant(runs)
    found: list[Figure] = []
    for variant, measured in variants.items():
        found += _variant_figures(variant.name, list(measured.values()), target)
    for variant in variants:
        for suffix, other in _comparisons(variant):
            difference = paired_difference(variants.get(variant, {}), variants.get(other, {}))
            if difference is not None:
                found.append(_figure(f"{variant.name}.{suffix}", difference, "accuracy"))
    return found


def paired_difference(these: Mapping[int, Measured], those: Mapping[int, Measured]) -> Estimate | None:
    """Final greedy accuracy of `these` less that of `those`, over the seeds that both have; None without any."""
    seeds = sorted(set(these) & set(those))
    if not seeds:
        return None
    return estimate([these[seed].final_accuracy - those[seed].final_accuracy for seed in seeds])


def _variant_figures(name: str, measured: Sequence[Measured], target: float) -> list[Figure]:
    steps = [each.steps_to(target) for each in measured]
    reached = [step for step in steps if step is not None]
    sizes = [each.effective_sample_size for each in measured if each.effective_sample_size is not None]
    found = [
        _figure(f"{name}.accuracy", estimate([each.final_accuracy for each in measured]), "accuracy"),
        _figure(
            f"{name}.sampled_accuracy", estimate([each.sampled_accuracy for each in measured]), "accuracy"
        ),
        Figure(name=f"{name}.share_reaching_target", value=len(reached) / len(steps), unit="of runs"),
    ]
    if len(reached) == len(steps):
        found.append(_figure(f"{name}.steps_to_target", estimate(reached), "steps", higher_is_better=False))
    if sizes:
        found.append(_figure(f"{name}.effective_sample_size", estimate(sizes), "of batch"))
    return found


def _figure(name: str, found: Estimate, unit: str, *, higher_is_better: bool = True) -> Figure:
    return Figure(
        name=name,
        value=found.mean,
        unit=unit,
        interval=found.interval,
        num_draws=found.num_draws,
        higher_is_better=higher_is_better,
    )


def _comparisons(variant: Variant) -> Iterator[tuple[str, Variant]]:
    """What a variant is compared with, and what the difference is called."""
    if not variant.is_corrected:
        return
    yield (
        "accuracy_gained_by_correction",
        Variant(part=variant.part, algorithm=variant.algorithm, lag=variant.lag, is_corrected=False),
    )
    if variant.lag > 0:
        place = "alpha" if variant.part is Part.REAL else "lag"
        yield (
            f"accuracy_above_{place}_0",
            Variant(part=variant.part, algorithm=variant.algorithm, lag=0),
        )
