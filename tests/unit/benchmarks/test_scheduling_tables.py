"""The tables of the benchmarks page are those of the results files."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from benchmarks.scheduling.tables import begin, end, page, tables, with_tables

if TYPE_CHECKING:
    from pathlib import Path


def test_the_page_has_the_tables_of_the_results() -> None:
    text = page.read_text(encoding="utf-8")
    assert text == with_tables(text, tables()), "write the page anew: python -m benchmarks.scheduling.tables"


def test_a_table_names_command_date_and_figures_but_not_what_they_are_made_of(tmp_path: Path) -> None:
    figure = {"value": 1.1425, "interval": [1.098, 1.1801], "ideal": 1.0, "target": None, "num_draws": 4}
    names = ("scheduling.queue.speedup", "scheduling.queue.seconds", "slow_worker.queue.step_time")
    found = {
        "date": "2026-11-22",
        "command": "python -m benchmarks.scheduling --only queue",
        "machine": "x86_64, 2 CPUs, Linux",
        "figures": [{"name": name, **figure} for name in names],
    }
    (tmp_path / "queue.json").write_text(json.dumps(found), encoding="utf-8")
    lines = tables(tmp_path).splitlines()
    assert lines[0].startswith("[queue.json](../benchmarks/scheduling/results/queue.json), 2026-11-22")
    assert lines[1] == "`python -m benchmarks.scheduling --only queue`"
    assert lines[-2:] == [
        "| `queue.speedup` | 1.14 | 1.10 to 1.18 | 1.00 |  | 4 |",
        "| `slow_worker.queue.step_time` | 1.14 | 1.10 to 1.18 | 1.00 |  | 4 |",
    ]


def test_only_what_stands_between_the_marks_is_replaced() -> None:
    text = f"before\n\n{begin}\n\nold\n\n{end}\n\nafter\n"
    assert with_tables(text, "new") == f"before\n\n{begin}\n\nnew\n\n{end}\n\nafter\n"
    with pytest.raises(ValueError, match="put both lines where the tables belong"):
        with_tables("no marks", "new")
