"""Figures of a benchmark: what was measured, in which unit, against which target and which ideal."""

from __future__ import annotations

import json
import os
import platform
import random
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import cache
from importlib import metadata
from statistics import fmean, stdev
from typing import TYPE_CHECKING, TypeVar

from rollog import __version__
from rollog.kernel.broker.embedded_jars import kafka_version

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

Item = TypeVar("Item")

num_resamples = 2000
least_draws = 4
"""Fewer say too little about their spread for an interval."""
_kafka_clients = ("kafka-python", "confluent-kafka")
_confidence = 0.95
_t_quantiles = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)
"""97.5 % quantiles of Student's t with 1, 2, 3 ... degrees of freedom."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One measured figure. `interval` is a 95 % interval over `num_draws` draws."""

    name: str
    value: float
    unit: str
    target: float | None = None
    ideal: float | None = None
    higher_is_better: bool = True
    interval: tuple[float, float] | None = None
    num_draws: int | None = None

    def line(self) -> str:
        """The figure for reading."""
        parts = [f"{self.name}: {self.value:.3g} {self.unit}"]
        if self.interval is not None:
            parts.append(f"[{self.interval[0]:.3g}, {self.interval[1]:.3g}]")
        if self.ideal is not None:
            parts.append(f"ideal {self.ideal:.3g}")
        if self.target is not None:
            meets = self.value >= self.target if self.higher_is_better else self.value <= self.target
            parts.append(f"target {self.target:.3g} {'met' if meets else 'MISSED'}")
        return "  ".join(parts)


def write_figures(figures: Sequence[Figure], path: Path) -> None:
    """Write a JSON list with one object per figure."""
    path.write_text(json.dumps([asdict(figure) for figure in figures], indent=1) + "\n", encoding="utf-8")


def write_results(
    figures: Sequence[Figure],
    path: Path,
    *,
    command: str,
    seconds: float,
    libraries: Sequence[str] = (),
    details: Mapping[str, object] | None = None,
) -> None:
    """Write the figures together with when, where, with what and how they were measured.

    `seconds` is how long that took, `libraries` are further modules whose versions matter, `details` further entries.
    What was there before is replaced when the new file is whole.
    """
    results = {
        "date": datetime.now(UTC).date().isoformat(),
        "command": command,
        "seconds": round(seconds, 1),
        "machine": f"{platform.machine()}, {os.cpu_count()} CPUs, {platform.system()}",
        "load_average": [round(load, 2) for load in os.getloadavg()],
        "versions": {
            "rollog": __version__,
            "python": platform.python_version(),
            "kafka": kafka_version,
            **{client: version for client in _kafka_clients if (version := _installed_version(client))},
            **_versions_of(tuple(libraries)),
        },
        "figures": [asdict(figure) for figure in figures],
        **(details or {}),
    }
    partial = path.with_name(f"{path.name}.partial")
    partial.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    partial.replace(path)


def _installed_version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


@cache
def _versions_of(modules: tuple[str, ...]) -> dict[str, str]:
    """Versions of what provides these modules: its name may be another one, as that of a build for CPUs."""
    distributions = metadata.packages_distributions() if modules else {}
    return {module: metadata.version(distributions[module][0]) for module in modules}


def ratio_of_means(pairs: Sequence[tuple[float, float]]) -> float:
    """Mean of the first over mean of the second."""
    return fmean(first for first, _ in pairs) / fmean(second for _, second in pairs)


def ratio_figure(
    name: str,
    unit: str,
    pairs: Sequence[tuple[float, float]],
    *,
    target: float | None = None,
    ideal: float | None = None,
    higher_is_better: bool = True,
) -> Figure:
    """The ratio of the means of both sides, with an interval over the pairs."""
    return Figure(
        name=name,
        value=ratio_of_means(pairs),
        unit=unit,
        target=target,
        ideal=ideal,
        higher_is_better=higher_is_better,
        interval=bootstrap_interval(pairs, ratio_of_means),
        num_draws=len(pairs),
    )


def bootstrap_interval(
    items: Sequence[Item], statistic: Callable[[Sequence[Item]], float], *, seed: int = 0
) -> tuple[float, float] | None:
    """95 % percentile interval of a statistic over draws; None for fewer than `least_draws`."""
    if len(items) < least_draws:
        return None
    noise = random.Random(seed)  # statistics, not secrets
    values = sorted(statistic(noise.choices(items, k=len(items))) for _ in range(num_resamples))
    tail = (1 - _confidence) / 2
    return values[int(tail * num_resamples)], values[int((1 - tail) * num_resamples) - 1]


def t_interval(values: Sequence[float]) -> tuple[float, float] | None:
    """95 % interval of the mean of few draws by Student's t, of many by resampling; None for a single one.

    It assumes draws from a normal distribution: for shares near 0 or 1 it reaches beyond these.
    """
    if len(values) <= 1:
        return None
    if len(values) > len(_t_quantiles) + 1:
        return bootstrap_interval(values, fmean)
    half = _t_quantiles[len(values) - 2] * stdev(values) / len(values) ** 0.5
    return fmean(values) - half, fmean(values) + half


def rounded(interval: tuple[float, float] | None) -> tuple[float, float] | None:
    """An interval as it is written."""
    return None if interval is None else (round(interval[0], 4), round(interval[1], 4))


def mean_figure(
    name: str,
    unit: str,
    values: Sequence[float],
    *,
    target: float | None = None,
    ideal: float | None = None,
    higher_is_better: bool = True,
) -> Figure:
    """The mean of one quantity over draws, with its interval (`t_interval`)."""
    return Figure(
        name=name,
        value=round(fmean(values), 4),
        unit=unit,
        target=target,
        ideal=None if ideal is None else round(ideal, 4),
        higher_is_better=higher_is_better,
        interval=rounded(t_interval(values)),
        num_draws=len(values),
    )
