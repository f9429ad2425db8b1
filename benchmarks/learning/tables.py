"""The runs of the learning experiment as Markdown tables. Pure."""

from __future__ import annotations

from statistics import fmean
from typing import TYPE_CHECKING

from benchmarks.learning.cells import Part, Variant
from benchmarks.learning.figures import by_variant, estimate, paired_difference

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from benchmarks.learning.cells import Measured, Runs


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
