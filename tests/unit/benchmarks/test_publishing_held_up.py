"""How long publishing holds training up, measured on a run that is small and quick."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.harness.random_model import shapes
from benchmarks.weights.beside import LargeEngine, measure_beside, table_of

if TYPE_CHECKING:
    from pathlib import Path


def test_beside_and_inside_are_measured_with_what_bounds_them(tmp_path: Path) -> None:
    figures = measure_beside(
        shape=shapes["tiny"], home=tmp_path, seed=0, on_progress=print, step_seconds=0.05, num_steps=5
    )
    by_name = {figure.name: figure for figure in figures}
    assert by_name.keys() == {
        "weights.beside.copy",
        *(f"weights.beside.{way}.{what}" for way in ("beside", "inside") for what in ("held", "step")),
    }
    for way in ("beside", "inside"):
        assert 0 < by_name[f"weights.beside.{way}.held"].value < 1
        assert by_name[f"weights.beside.{way}.step"].value >= 0.05
    assert by_name["weights.beside.beside.held"].target == 0.08
    assert list(tmp_path.iterdir()) == [], "nothing of the runs is left"


def test_the_tensors_are_as_large_as_those_of_the_model() -> None:
    num_parameters = sum(spec.num_bytes for spec in table_of(shapes["0.5b"])) // 2
    # Of 494 million; norms and biases are left out.
    assert 493_000_000 < num_parameters < 494_100_000
    assert LargeEngine(shapes["tiny"], seconds=0.0).num_bytes == sum(
        spec.num_bytes for spec in table_of(shapes["tiny"])
    )
