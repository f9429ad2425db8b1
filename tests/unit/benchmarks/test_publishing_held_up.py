"""How long publishing holds training up, and what it costs a run, measured on runs that are small and quick."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from benchmarks.harness.random_model import shapes
from benchmarks.weights.__main__ import weights
from benchmarks.weights.beside import measure_beside
from benchmarks.weights.large_runs import Stepped
from benchmarks.weights.parts import ways_beside
from benchmarks.weights.rate import measure_rate
from rollog.kernel.errors import DataError
from schemas import StepTimings

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.engine
def test_beside_and_inside_are_measured_with_what_bounds_them(tmp_path: Path) -> None:
    figures = measure_beside(
        shape=shapes["tiny"], home=tmp_path, seed=0, on_progress=print, step_seconds=0.05, num_steps=5
    )
    by_name = {figure.name: figure for figure in figures}
    ways = tuple(ways_beside)
    assert by_name.keys() == {
        "weights.beside.copy",
        *(f"weights.beside.{way}.{what}" for way in ways for what in ("held", "step")),
    }
    for way in ways:
        assert 0 < by_name[f"weights.beside.{way}.held"].value < 1
        assert by_name[f"weights.beside.{way}.step"].value >= 0.05
        assert by_name[f"weights.beside.{way}.held"].target == (None if "inside" in way else 0.08)
    assert list(tmp_path.iterdir()) == [], "nothing of the runs is left"


@pytest.mark.engine
def test_ways_can_be_chosen_and_sizes_that_no_part_takes_are_refused(tmp_path: Path) -> None:
    found = tmp_path / "found.json"
    words = ["--only", "beside", "--run-shape", "tiny", "--ways", "inside", "--step-seconds", "0.05"]
    assert CliRunner().invoke(weights, [*words, "--json", str(found)]).exit_code == 0
    names = [figure["name"] for figure in json.loads(found.read_text())]
    assert names == ["weights.beside.copy", "weights.beside.inside.held", "weights.beside.inside.step"]
    refused = CliRunner().invoke(weights, ["--only", "reload", "--sizes", "7b,1.5b"])
    assert isinstance(refused.exception, DataError)
    assert "measures 0.1b, 0.5b" in str(refused.exception)


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


def test_publishing_and_checkpoints_hold_up_their_share_of_all_that_the_trainer_does() -> None:
    timings = StepTimings(wait_seconds=1.0, train_seconds=5.0, publish_seconds=1.0, checkpoint_seconds=1.0)
    stepped = Stepped([timings], [8.5])
    assert stepped.held_shares == [0.25]
    assert stepped.busy_seconds == [8.0]


@pytest.mark.engine
def test_a_checkpoint_has_twelve_bytes_for_each_parameter(tmp_path: Path) -> None:
    from benchmarks.weights.checkpointing_engine import CheckpointingEngine  # noqa: PLC0415 - it needs PyTorch

    engine = CheckpointingEngine(shapes["tiny"])
    engine.start("none")
    digests = engine.begin_checkpoint(tmp_path)()
    num_bytes = sum((tmp_path / name).stat().st_size for name in digests)
    assert 0 <= num_bytes - 12 * engine.num_bytes / 2 < 5000
