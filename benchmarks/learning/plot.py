"""Curves of accuracy against lag as an SVG picture: one panel for each algorithm. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING
from xml.sax.saxutils import escape

from benchmarks.learning.cells import Part
from benchmarks.learning.figures import by_variant, estimate

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from benchmarks.learning.cells import Measured, Runs, Variant
    from benchmarks.learning.figures import Estimate

_columns = 4
_panel_width, _panel_height = 230, 170
_left, _right, _top, _bottom = 40, 12, 30, 38
_header_height = 64
_text, _faint = "#222222", "#dddddd"


@dataclass(frozen=True, slots=True, kw_only=True)
class Style:
    """How a curve looks, and what it shows. `shift` in pixels keeps its bars apart from those of others."""

    label: str
    colour: str
    is_dashed: bool
    shift: float

    @property
    def dashes(self) -> str:
        """The attribute of a line."""
        return ' stroke-dasharray="5 3"' if self.is_dashed else ""


greedy = Style(label="greedy", colour="#0072b2", is_dashed=False, shift=-3)
sampled = Style(label="sampled", colour="#d55e00", is_dashed=False, shift=3)
greedy_uncorrected = Style(label="greedy, without the correction", colour="#0072b2", is_dashed=True, shift=-7)
sampled_uncorrected = Style(
    label="sampled, without the correction", colour="#d55e00", is_dashed=True, shift=7
)
styles = (greedy, sampled, greedy_uncorrected, sampled_uncorrected)


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One pair of axes. `points` holds, by curve, an estimate for each lag that was measured."""

    title: str
    x_label: str
    lags: tuple[float, ...]
    points: Mapping[Style, Mapping[float, Estimate]]


@dataclass(frozen=True, slots=True)
class _Scale:
    """The accuracies of a panel, from `low` to 1; what is beyond ends at the axes."""

    low: float

    @classmethod
    def of(cls, panels: Sequence[Panel]) -> _Scale:
        """One scale for all, from the quarter below the lowest mean, so that panels can be compared."""
        means = [
            found.mean for panel in panels for points in panel.points.values() for found in points.values()
        ]
        return cls(min(math.floor(4 * min(means, default=0.0)) / 4, 0.75))

    @property
    def ticks(self) -> list[float]:
        """Five values at equal distances."""
        return [self.low + part * (1.0 - self.low) / 4 for part in range(5)]

    def y(self, accuracy: float) -> float:
        """Pixels from the top of a panel."""
        share = (min(max(accuracy, self.low), 1.0) - self.low) / (1.0 - self.low)
        return _top + (_panel_height - _top - _bottom) * (1.0 - share)


def plotted(runs: Runs) -> str:
    """The picture of all runs, as SVG."""
    return svg_of(panels_of(runs), "Held-out accuracy after the last step, with 95 % intervals over seeds")


def panels_of(runs: Runs) -> list[Panel]:
    """A panel for each part and algorithm, in the order of the figures."""
    variants = by_variant(runs)
    wanted = dict.fromkeys((variant.part, variant.algorithm) for variant in variants)
    return [_panel(part, algorithm, variants) for part, algorithm in wanted]


def svg_of(panels: Sequence[Panel], title: str) -> str:
    """The whole picture; `title` is its first line."""
    scale, num_rows = _Scale.of(panels), -(-len(panels) // _columns)
    width, height = _columns * _panel_width, _header_height + num_rows * _panel_height
    lines = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
            f'viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="11" fill="{_text}">'
        ),
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
        f'<text x="12" y="22" font-size="15">{escape(title)}</text>',
        *_legend(),
    ]
    for number, panel in enumerate(panels):
        row, column = divmod(number, _columns)
        x, y = column * _panel_width, _header_height + row * _panel_height
        lines += [f'<g transform="translate({x},{y})">', *_axes(panel, scale), *_curves(panel, scale), "</g>"]
    return "\n".join([*lines, "</svg>\n"])


def _panel(part: Part, algorithm: str, variants: Mapping[Variant, Mapping[int, Measured]]) -> Panel:
    accuracies: dict[Style, Callable[[Measured], float]] = {
        greedy: lambda measured: measured.final_accuracy,
        sampled: lambda measured: measured.sampled_accuracy,
        greedy_uncorrected: lambda measured: measured.final_accuracy,
        sampled_uncorrected: lambda measured: measured.sampled_accuracy,
    }
    own = {
        variant: list(measured.values())
        for variant, measured in variants.items()
        if (variant.part, variant.algorithm) == (part, algorithm)
    }
    return Panel(
        title=algorithm if part is Part.INJECTED else f"{algorithm}, real loop",
        x_label="lag" if part is Part.INJECTED else "alpha",
        lags=tuple(sorted({variant.lag for variant in own})),
        points={
            style: {
                variant.lag: estimate([accuracy(each) for each in measured])
                for variant, measured in own.items()
                if variant.is_corrected != style.is_dashed
            }
            for style, accuracy in accuracies.items()
        },
    )


def _legend() -> Iterator[str]:
    x = 12
    for style in styles:
        yield (
            f'<line x1="{x}" y1="42" x2="{x + 24}" y2="42" stroke="{style.colour}" stroke-width="2"{style.dashes}/>'
        )
        yield f'<text x="{x + 30}" y="46">{escape(style.label)}</text>'
        x += 50 + 7 * len(style.label)


def _axes(panel: Panel, scale: _Scale) -> Iterator[str]:
    yield f'<text x="{_left}" y="{_top - 10}" font-size="12" font-weight="bold">{escape(panel.title)}</text>'
    for tick in scale.ticks:
        y = scale.y(tick)
        yield f'<line x1="{_left}" y1="{y:.1f}" x2="{_panel_width - _right}" y2="{y:.1f}" stroke="{_faint}"/>'
        yield f'<text x="{_left - 5}" y="{y + 4:.1f}" text-anchor="end">{tick:.3g}</text>'
    for place, lag in enumerate(panel.lags):
        x, y = _x(place, len(panel.lags)), _panel_height - _bottom + 14
        yield f'<text x="{x:.1f}" y="{y}" text-anchor="middle">{lag:g}</text>'
    middle = (_left + _panel_width - _right) / 2
    yield f'<text x="{middle:.1f}" y="{_panel_height - 10}" text-anchor="middle">{panel.x_label}</text>'


def _curves(panel: Panel, scale: _Scale) -> Iterator[str]:
    """Per curve its line, then a bar and a dot for each estimate; bars end at the axes."""
    for style, points in panel.points.items():
        placed = [
            (_x(place, len(panel.lags)) + style.shift, points[lag])
            for place, lag in enumerate(panel.lags)
            if lag in points
        ]
        corners = " ".join(f"{x:.1f},{scale.y(found.mean):.1f}" for x, found in placed)
        if len(placed) > 1:
            yield (
                f'<polyline points="{corners}" fill="none" stroke="{style.colour}" stroke-width="1.5"{style.dashes}/>'
            )
        for x, found in placed:
            if found.interval is not None:
                low, high = (scale.y(bound) for bound in found.interval)
                yield (
                    f'<line x1="{x:.1f}" y1="{low:.1f}" x2="{x:.1f}" y2="{high:.1f}" stroke="{style.colour}"/>'
                )
            yield f'<circle cx="{x:.1f}" cy="{scale.y(found.mean):.1f}" r="2.5" fill="{style.colour}"/>'


def _x(place: int, num_places: int) -> float:
    """Lags stand at equal distances: they grow by doubling."""
    width = _panel_width - _left - _right
    return _left + width * (place + 0.5) / num_places
