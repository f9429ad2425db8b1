"""The picture of the learning experiment."""

from __future__ import annotations

from xml.etree import ElementTree as ET

import pytest

from benchmarks.learning.cells import Cell, Measured, Part, Variant
from benchmarks.learning.figures import Estimate
from benchmarks.learning.plot import Panel, greedy, greedy_uncorrected, panels_of, sampled, svg_of

svg = "{http://www.w3.org/2000/svg}"


def a_panel(title: str = "grpo", mean: float = 0.5) -> Panel:
    points = {
        0.0: Estimate(mean=mean, interval=(mean - 0.1, mean + 0.1), num_draws=3),
        2.0: Estimate(mean=0.3, interval=None, num_draws=1),
    }
    return Panel(title=title, x_label="lag", lags=(0.0, 2.0), points={greedy: points})


def elements(panels: list[Panel], tag: str) -> list[dict[str, str]]:
    """Attributes of the elements of one kind inside the panels."""
    root = ET.fromstring(svg_of(panels, "title"))
    return [dict(each.attrib) for group in root.iter(f"{svg}g") for each in group.iter(f"{svg}{tag}")]


def measured(accuracy: float) -> Measured:
    return Measured(accuracy={0: accuracy}, sampled_accuracy=0.25, effective_sample_size=None, seconds=1.0)


def test_a_panel_holds_a_dot_for_each_estimate_and_a_line_through_them() -> None:
    dots = elements([a_panel()], "circle")
    corners = elements([a_panel()], "polyline")[0]["points"].split()
    assert [f"{dot['cx']},{dot['cy']}" for dot in dots] == corners
    assert float(dots[0]["cy"]) < float(dots[1]["cy"]), "a higher accuracy stands higher"


def test_bars_reach_as_far_as_the_interval_and_end_at_the_axes() -> None:
    def ends(mean: float) -> list[float]:
        bar = next(line for line in elements([a_panel(mean=mean)], "line") if line["stroke"] == greedy.colour)
        return [float(bar["y1"]), float(bar["y2"])]

    (low, high), (clipped_low, clipped_high) = ends(0.5), ends(1.0)
    assert low - high == pytest.approx(2 * (clipped_low - clipped_high), abs=0.2)
    assert clipped_high < low


def test_all_panels_share_one_scale_that_begins_at_the_quarter_below_the_lowest_mean() -> None:
    texts = [
        text.text
        for text in ET.fromstring(svg_of([a_panel(mean=0.9), a_panel(mean=0.6)], "title")).iter(f"{svg}text")
    ]
    assert texts.count("0.25") == 2, "the lowest mean is 0.3"
    assert texts.count("1") == 2


def test_every_panel_has_a_place_of_its_own_and_the_picture_is_as_high_as_they_need() -> None:
    root = ET.fromstring(svg_of([a_panel(f"a & {number}") for number in range(6)], "<title>"))
    places = [group.attrib["transform"] for group in root.iter(f"{svg}g")]
    assert len(set(places)) == 6
    one_row = ET.fromstring(svg_of([a_panel()], "title"))
    assert float(root.attrib["height"]) > float(one_row.attrib["height"])
    assert {"<title>", "a & 5"} <= {text.text for text in root.iter(f"{svg}text")}


def test_panels_part_algorithms_and_runs_with_and_without_correction() -> None:
    def cell(part: Part, algorithm: str, lag: float, *, is_corrected: bool = True) -> Cell:
        variant = Variant(part=part, algorithm=algorithm, lag=lag, is_corrected=is_corrected)
        return Cell(variant=variant, seed=0)

    runs = {
        cell(Part.INJECTED, "grpo", 0): measured(0.9),
        cell(Part.INJECTED, "grpo", 8): measured(0.8),
        cell(Part.INJECTED, "grpo", 8, is_corrected=False): measured(0.7),
        cell(Part.REAL, "grpo", 2): measured(0.6),
    }
    injected, real = panels_of(runs)
    assert (injected.title, injected.lags, real.title, real.x_label) == (
        "grpo",
        (0, 8),
        "grpo, real loop",
        "alpha",
    )
    assert {lag: found.mean for lag, found in injected.points[greedy].items()} == {0: 0.9, 8: 0.8}
    assert {lag: found.mean for lag, found in injected.points[greedy_uncorrected].items()} == {8: 0.7}
    assert real.points[sampled][2].mean == 0.25
