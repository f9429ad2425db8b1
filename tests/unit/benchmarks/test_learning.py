"""Cells, estimates, figures and tables of the learning experiment, from known runs."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from benchmarks.harness.figures import write_results
from benchmarks.learning.cells import (
    Cell,
    Measured,
    Part,
    Runs,
    Variant,
    injected_cells,
    measure,
    real_cells,
)
from benchmarks.learning.figures import by_variant, estimate, figures_of, paired_difference
from benchmarks.learning.known_runs import from_json, known_runs, results_details, to_json
from benchmarks.learning.tables import tables_of
from rollog.kernel.errors import ConfigError, DataError

if TYPE_CHECKING:
    from pathlib import Path


def a_variant(algorithm: str = "grpo", lag: float = 0, *, is_corrected: bool = True) -> Variant:
    return Variant(part=Part.INJECTED, algorithm=algorithm, lag=lag, is_corrected=is_corrected)


def measured(*accuracy: float, sampled: float = 0.5) -> Measured:
    """Accuracies of every second version."""
    return Measured(
        accuracy={2 * place: value for place, value in enumerate(accuracy)},
        sampled_accuracy=sampled,
        effective_sample_size=0.75,
        seconds=1.0,
    )


def some_runs() -> Runs:
    corrected, without = a_variant(lag=4), a_variant(lag=4, is_corrected=False)
    return {
        Cell(variant=a_variant(), seed=0): measured(0.4, 0.95, 0.99),
        Cell(variant=a_variant(), seed=1): measured(0.4, 0.90, 0.97),
        Cell(variant=corrected, seed=0): measured(0.4, 0.5, 0.95),
        Cell(variant=corrected, seed=1): measured(0.4, 0.5, 0.91),
        Cell(variant=without, seed=0): measured(0.4, 0.5, 0.75),
        Cell(variant=without, seed=1): measured(0.4, 0.5, 0.73),
    }


def test_lags_are_measured_in_the_order_given_with_seeds_before_the_next_lag() -> None:
    cells = list(injected_cells(["grpo", "rloo"], [0, 8], [0, 1]))
    assert len(cells) == len(set(cells))
    assert [cell.variant.lag for cell in cells] == [0] * 4 + [8] * 6
    assert [cell.seed for cell in cells[:4]] == [0, 0, 1, 1]


def test_only_the_algorithms_chosen_for_it_and_only_large_lags_are_run_without_correction() -> None:
    cells = injected_cells(["grpo", "rloo", "topr"], [0, 2, 4], [0])
    found = [cell.variant for cell in cells if not cell.variant.is_corrected]
    assert found == [a_variant("grpo", 4, is_corrected=False), a_variant("topr", 4, is_corrected=False)]


def test_the_real_loop_takes_alphas_in_turns() -> None:
    cells = list(real_cells(["grpo"], [0.0, 2.0], [3, 4]))
    assert [(cell.seed, cell.variant.lag) for cell in cells] == [(3, 0.0), (3, 2.0), (4, 0.0), (4, 2.0)]
    assert cells[1].variant.name == "learning.real.grpo.alpha_2"


def test_what_is_known_is_not_measured_again() -> None:
    cells = list(injected_cells(["grpo"], [0], [0, 1, 2]))
    known = {cells[1]: measured(0.1)}
    told: list[tuple[Cell, int]] = []
    runs = measure(
        cells,
        known,
        {Part.INJECTED: lambda cell: measured(cell.seed / 10)},
        lambda cell, so_far: told.append((cell, len(so_far))),
    )
    assert told == [(cells[0], 2), (cells[2], 3)]
    assert {cell.seed: found.final_accuracy for cell, found in runs.items()} == {0: 0.0, 1: 0.1, 2: 0.2}
    assert known == {cells[1]: measured(0.1)}


def test_steps_to_the_target_are_those_to_the_first_evaluation_at_or_above_it() -> None:
    run = measured(0.4, 0.92, 0.5, 0.95)
    assert run.steps_to(0.92) == 2
    assert run.steps_to(0.93) == 6
    assert run.steps_to(0.96) is None
    assert run.final_accuracy == 0.95


def test_an_estimate_of_three_values_has_the_interval_of_students_t() -> None:
    found = estimate([1.0, 2.0, 3.0])
    assert found.mean == 2.0
    assert found.interval == pytest.approx((2 - 4.303 / 3**0.5, 2 + 4.303 / 3**0.5))
    assert str(estimate([0.5])) == "0.500"
    assert str(estimate([0.5, 0.5])) == "0.500 ± 0.000"


def test_runs_are_compared_seed_by_seed() -> None:
    these = {0: measured(0.9), 1: measured(0.8), 2: measured(0.1)}
    those = {0: measured(0.7), 1: measured(0.6)}
    difference = paired_difference(these, those)
    assert difference is not None
    assert difference.mean == pytest.approx(0.2)
    assert difference.interval == pytest.approx((0.2, 0.2))
    assert paired_difference(these, {}) is None


def test_figures_tell_accuracy_steps_and_what_lag_and_correction_change() -> None:
    figures = {figure.name: figure for figure in figures_of(some_runs(), 0.94)}
    assert figures["learning.injected.grpo.lag_0.accuracy"].value == pytest.approx(0.98)
    assert figures["learning.injected.grpo.lag_0.accuracy"].num_draws == 2
    assert figures["learning.injected.grpo.lag_0.sampled_accuracy"].value == 0.5
    assert figures["learning.injected.grpo.lag_0.steps_to_target"].value == 3.0
    assert figures["learning.injected.grpo.lag_0.effective_sample_size"].value == 0.75
    assert figures["learning.injected.grpo.lag_4.accuracy_above_lag_0"].value == pytest.approx(-0.05)
    gained = figures["learning.injected.grpo.lag_4.accuracy_gained_by_correction"]
    assert gained.value == pytest.approx(0.19)
    assert "learning.injected.grpo.lag_0.accuracy_above_lag_0" not in figures


def test_steps_to_the_target_are_no_figure_where_a_run_never_gets_there() -> None:
    figures = {figure.name: figure for figure in figures_of(some_runs(), 0.94)}
    assert figures["learning.injected.grpo.lag_4.share_reaching_target"].value == 0.5
    assert "learning.injected.grpo.lag_4.steps_to_target" not in figures
    assert "learning.injected.grpo.lag_4.uncorrected.steps_to_target" not in figures


def test_tables_have_a_row_for_each_algorithm_and_say_how_many_runs_reach_the_target() -> None:
    runs = some_runs() | {Cell(variant=a_variant("rloo"), seed=0): measured(0.4, 0.5)}
    greedy, _, steps, ablation = tables_of(runs, 0.94)
    assert "| algorithm | lag 0 | lag 4 |" in greedy
    assert "| `rloo` | 0.500 | - |" in greedy
    assert "| `grpo` | 3.0 | 4.0 (1 of 2 runs) |" in steps
    assert "| `rloo` | never | - |" in steps
    assert "| `grpo` | 4 | 0.930 ± 0.254 | 0.740 ± 0.127 | 0.190 ± 0.127 |" in ablation


def test_without_runs_lacking_the_correction_there_is_no_table_about_it() -> None:
    assert len(tables_of({Cell(variant=a_variant(), seed=0): measured(0.4)}, 0.9)) == 3


def test_runs_survive_their_way_to_a_file_and_back() -> None:
    runs = some_runs()
    assert from_json(json.loads(json.dumps(to_json(runs)))) == runs


def test_variants_stand_in_order_whatever_the_order_of_measuring() -> None:
    runs = some_runs()
    turned = dict(reversed(runs.items()))
    assert list(by_variant(turned)) == list(by_variant(runs))
    assert [variant.lag for variant in by_variant(runs)] == [0, 4, 4]


def test_runs_of_a_results_file_are_known_only_under_the_same_settings(tmp_path: Path) -> None:
    path, settings = tmp_path / "learning.json", {"run.num_steps": 20, "optimizer.betas": [0.9, 0.95]}
    assert known_runs(None, settings) == known_runs(path, settings) == {}
    details = results_details(some_runs(), settings)
    write_results([], path, command="python -m benchmarks.learning", seconds=1.0, details=details)
    assert known_runs(path, settings) == some_runs()
    with pytest.raises(ConfigError, match=r"run\.num_steps = 20 there, 3 here; name another file"):
        known_runs(path, settings | {"run.num_steps": 3})


def test_a_results_file_of_another_benchmark_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "accuracy.json"
    write_results([], path, command="python -m benchmarks.accuracy", seconds=1.0)
    with pytest.raises(DataError, match=r"holds no results of this benchmark.*name another file"):
        known_runs(path, {})
