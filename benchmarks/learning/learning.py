"""What `rollog bench learning` measures, and what its runs amount to: cells, estimates over seeds, figures, tables.

A cell is one training run. All cells of a seed share the order of the prompts, so that two of them that differ in
nothing but lag, or but the correction, are compared seed by seed.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from statistics import fmean
from typing import TYPE_CHECKING

from benchmarks.harness.figures import Figure, t_interval

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


def tables_of(runs: Runs, target: float) -> list[str]:
    """The runs as Markdown: per part final accuracies and steps to `target`, then what the correction is worth."""
    variants = by_variant(runs)
    statistics: dict[str, Callable[[Sequence[Measured]], str]] = {
        "greedy held-out accuracy after the last step": _greedy,
        "sampled held-out accuracy after the last step": _sampled,
        f"steps to {target:g} (greedy)": lambda measured: _steps_text(measured, target),
    }
    tables = []
    for part in Part:
        corrected = {
            variant: list(measured.values())
            for variant, measured in variants.items()
            if variant.part is part and variant.is_corrected
        }
        if corrected:
            tables += [_table(title, corrected, text) for title, text in statistics.items()]
    ablation = _ablation_table(variants)
    return [*tables, ablation] if ablation else tables


def _cells(
    part: Part, algorithms: Sequence[str], lag: float, seeds: Sequence[int], *, is_corrected: bool = True
) -> Iterator[Cell]:
    for seed in seeds:
        for algorithm in algorithms:
            variant = Variant(part=part, algorithm=algorithm, lag=lag, is_corrected=is_corrected)
            yield Cell(variant=variant, seed=seed)


def in_order(cell: Cell) -> tuple[str, str, bool, float, int]:
    """Sorts cells: part, algorithm, with correction first, lag, seed."""
    variant = cell.variant
    return variant.part, variant.algorithm, not variant.is_corrected, variant.lag, cell.seed


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


def _greedy(measured: Sequence[Measured]) -> str:
    return str(estimate([each.final_accuracy for each in measured]))


def _sampled(measured: Sequence[Measured]) -> str:
    return str(estimate([each.sampled_accuracy for each in measured]))


def _steps_text(measured: Sequence[Measured], target: float) -> str:
    steps = [each.steps_to(target) for each in measured]
    reached = [step for step in steps if step is not None]
    if not reached:
        return "never"
    missed = "" if len(reached) == len(steps) else f" ({len(reached)} of {len(steps)} runs)"
    return f"{fmean(reached):.1f}{missed}"


def _table(
    title: str,
    variants: Mapping[Variant, Sequence[Measured]],
    text: Callable[[Sequence[Measured]], str],
) -> str:
    """Algorithms down, lags across; a dash where nothing was measured."""
    lags = sorted({variant.lag for variant in variants})
    algorithms = list(dict.fromkeys(variant.algorithm for variant in variants))
    part = next(iter(variants)).part
    place = "alpha" if part is Part.REAL else "lag"
    lines = [
        f"{part}: {title}",
        "",
        _row(["algorithm", *(f"{place} {lag:g}" for lag in lags)]),
        _row(["---"] * (len(lags) + 1)),
    ]
    for algorithm in algorithms:
        measured = [variants.get(Variant(part=part, algorithm=algorithm, lag=lag)) for lag in lags]
        lines.append(_row([f"`{algorithm}`", *("-" if each is None else text(each) for each in measured)]))
    return "\n".join(lines)


def _ablation_table(variants: Mapping[Variant, Mapping[int, Measured]]) -> str | None:
    lines = [
        "injected: greedy held-out accuracy with and without the correction",
        "",
        _row(["algorithm", "lag", "with", "without", "with - without"]),
        _row(["---"] * 5),
    ]
    heading = len(lines)
    for variant, without in variants.items():
        known = Variant(part=variant.part, algorithm=variant.algorithm, lag=variant.lag)
        corrected = variants.get(known, {})
        difference = paired_difference(corrected, without)
        if variant.is_corrected or difference is None:
            continue
        texts = [_greedy(list(corrected.values())), _greedy(list(without.values())), str(difference)]
        lines.append(_row([f"`{variant.algorithm}`", f"{variant.lag:g}", *texts]))
    return "\n".join(lines) if len(lines) > heading else None


def _row(words: Sequence[str]) -> str:
    return f"| {' | '.join(words)} |"
