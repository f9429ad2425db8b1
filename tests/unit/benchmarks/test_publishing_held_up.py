"""How long publishing holds training up, and what it costs a run, measured on runs that are small and quick."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.harness.random_model import shapes
from benchmarks.weights.beside import measure_beside
from benchmarks.weights.large_runs import Stepped
from benchmarks.weights.rate import measure_rate
from schemas import StepTimings

if TYPE_CHECKING:
    from pathlib import Path


def test_beside_and_inside_are_measured_with_what_bounds_them(tmp_path: Path) -> None:
    figures = measure_beside(
        shape=shapes["tiny"], home=tmp_path, seed=0, on_progress=print, step_seconds=0.05, num_steps=5
    )
    by_name = {figure.name: figure for figure in figures}
    ways = ("beside", "beside_full", "inside", "inside_full")
    assert by_name.keys() == {
        "weights.beside.copy",
        *(f"weights.beside.{way}.{what}" for way in ways for what in ("held", "step")),
    }
    for way in ways:
        assert 0 < by_name[f"weights.beside.{way}.held"].value < 1
        assert by_name[f"weights.beside.{way}.step"].value >= 0.05
        assert by_name[f"weights.beside.{way}.held"].target == (0.08 if way.startswith("beside") else None)
    assert list(tmp_path.iterdir()) == [], "nothing of the runs is left"


def test_the_step_rate_with_publishing_stands_beside_that_without_for_each_alpha(tmp_path: Path) -> None:
    figures = measure_rate(
        shape=shapes["tiny"], home=tmp_path, seed=0, on_progress=print, step_seconds=0.05, num_steps=5
    )
    assert [(figure.name, figure.target) for figure in figures] == [
        (f"weights.rate.alpha_{alpha}.{form}", 0.92 if alpha and form == "patches" else None)
        for alpha in (0, 1, 2)
        for form in ("patches", "full")
    ]
    assert all(figure.value > 0 and figure.num_draws == 3 for figure in figures)


def test_publishing_holds_up_its_share_of_waiting_training_and_publishing() -> None:
    timings = StepTimings(wait_seconds=1.0, train_seconds=2.0, publish_seconds=1.0)
    stepped = Stepped([timings], [4.5])
    assert stepped.held_shares == [0.25]
    assert stepped.busy_seconds == [4.0]
