"""Two ways of doing the same, draw by draw: ratios of their times, beside the same ratio of the ideal. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from benchmarks.harness.figures import Figure, bootstrap_interval, ratio_of_means, rounded

if TYPE_CHECKING:
    from benchmarks.harness.variant import Variant


class TimedResult(Protocol):
    """What a run took, in engine seconds, and what its ideal takes."""

    @property
    def seconds(self) -> float:
        """Of the run."""
        ...

    @property
    def ideal_seconds(self) -> float:
        """Of the ideal on the same draw."""
        ...


Result = TypeVar("Result", bound=TimedResult)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair(Generic[Result]):
    """Baseline and mode on one draw."""

    baseline: Result
    mode: Result


Pairs = Sequence[Pair[Result]]
Statistic = Callable[[Pairs[Result]], float]


def paired(baseline: Mapping[int, Result], mode: Mapping[int, Result]) -> dict[int, Pair[Result]]:
    """The draws of which both results are there, in the order of their numbers."""
    numbers = sorted(baseline.keys() & mode.keys())
    return {number: Pair(baseline=baseline[number], mode=mode[number]) for number in numbers}


def speedup_figure(name: str, pairs: Pairs[Result], *, baseline: str, least_share: float) -> Figure:
    """How many times as fast the mode is; the target is `least_share` of what the ideal brings."""
    ideal = ideal_speedup(pairs)
    unit = f"times as fast as {baseline}"
    return pair_figure(
        name, speedup, pairs, unit, target=round(least_share * ideal, 4), ideal=round(ideal, 4)
    )


def share_figure(name: str, pairs: Pairs[Result], *, draws: str, least_share: float) -> Figure:
    """The speed-up over that of the ideal; `draws` is what the experiment calls its draws."""
    unit = f"measured speed-up / ideal speed-up on the same {draws}"
    return pair_figure(name, share_of_ideal, pairs, unit, target=least_share, ideal=1.0)


def efficiency_figure(name: str, pairs: Pairs[Result], *, target: float | None = None) -> Figure:
    """The ideal time of the mode over its measured time."""
    unit = "ideal time / measured time of this mode alone, whatever its baseline loses"
    return pair_figure(name, efficiency, pairs, unit, target=target, ideal=1.0)


def pair_figure(
    name: str,
    statistic: Statistic[Result],
    pairs: Pairs[Result],
    unit: str,
    *,
    target: float | None = None,
    ideal: float | None = None,
) -> Figure:
    """A statistic of the pairs with its interval."""
    return Figure(
        name=name,
        value=round(statistic(pairs), 4),
        unit=unit,
        target=target,
        ideal=ideal,
        interval=rounded(bootstrap_interval(pairs, statistic)),
        num_draws=len(pairs),
    )


def seconds_unit(variant: Variant) -> str:
    """What `seconds` of a variant's results are."""
    several = variant.num_steps > 1
    return (
        "s of engine time for a step" if several else "s of engine time from the first task to the full batch"
    )


def speedup(pairs: Pairs[Result]) -> float:
    """Mean time of the baseline over that of the mode."""
    return ratio_of_means([(pair.baseline.seconds, pair.mode.seconds) for pair in pairs])


def ideal_speedup(pairs: Pairs[Result]) -> float:
    """The same of the ideal."""
    return ratio_of_means([(pair.baseline.ideal_seconds, pair.mode.ideal_seconds) for pair in pairs])


def speedup_over_ideal(pairs: Pairs[Result]) -> float:
    """Mean ideal time of the baseline over the measured time of the mode."""
    return ratio_of_means([(pair.baseline.ideal_seconds, pair.mode.seconds) for pair in pairs])


def share_of_ideal(pairs: Pairs[Result]) -> float:
    """The measured speed-up over the ideal one."""
    return speedup(pairs) / ideal_speedup(pairs)


def efficiency(pairs: Pairs[Result]) -> float:
    """Mean ideal time of the mode over its measured time."""
    return ratio_of_means([(pair.mode.ideal_seconds, pair.mode.seconds) for pair in pairs])
