"""The benchmark of pinned instructions: whose seconds are compared with whose."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.reproducible import measure


def test_levels_take_turns_and_are_compared_with_machine_in_the_same_round(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[str] = []

    def taken(level: str, model: Path, num_steps: int, seed: int) -> float:
        del model, num_steps, seed
        asked.append(level)
        return {"machine": 1.0, "avx2": 2.0, "baseline": 3.0}[level]

    monkeypatch.setattr(measure, "_in_own_process", taken)
    figures = measure.measure_levels(Path("model"), num_rounds=3, num_steps=1, seed=0, on_progress=print)
    assert [asked[number] for number in (0, 3, 6)] == ["machine", "avx2", "baseline"]
    assert sorted(asked) == sorted(measure.levels * 3)
    found = {figure.name: figure.value for figure in figures}
    assert found["reproducible.avx2.cost"] == pytest.approx(2.0)
    assert found["reproducible.baseline.cost"] == pytest.approx(3.0)
    assert found["reproducible.machine.seconds"] == 1.0
