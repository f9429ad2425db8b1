"""`python -m benchmarks.scheduling.tables`: write what was measured last into docs/benchmarks.md, as tables.

Each file in `results/` becomes one table between the two marks of that page. A test holds that the page is up to date.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from collections.abc import Iterable

page = Path(__file__).parents[2] / "docs" / "benchmarks.md"
results = Path(__file__).parent / "results"
begin = "<!-- Written by `python -m benchmarks.scheduling.tables`. -->"
end = "<!-- Until here. -->"
_columns = ("figure", "value", "95 % interval", "ideal", "target", "workloads")
_left_out = (".seconds", ".efficiency", ".share_of_ideal")
"""Endings of figures that stand in the files alone."""
_prefix = "scheduling."


def tables(directory: Path = results) -> str:
    """One table for each results file in this directory, in the order of their names."""
    files = sorted(directory.glob("*.json"))
    return "\n\n".join(_table(path.name, json.loads(path.read_text(encoding="utf-8"))) for path in files)


def with_tables(text: str, written: str) -> str:
    """The page `text` with these tables between its marks. Raises ValueError for a page without them."""
    before, mark, rest = text.partition(begin)
    _, last_mark, after = rest.partition(end)
    if not mark or not last_mark:
        raise ValueError(f"the page has no {begin} ... {end}: put both lines where the tables belong")
    return f"{before}{begin}\n\n{written}\n\n{end}{after}"


def _table(name: str, found: dict[str, Any]) -> str:
    figures = [figure for figure in found["figures"] if not figure["name"].endswith(_left_out)]
    return "\n".join(
        [
            f"[{name}](../benchmarks/scheduling/results/{name}), {found['date']}, {found['machine']}:",
            _command(found["command"]),
            "",
            _row(_columns),
            _row(["---"] * len(_columns)),
            *(_row(_cells(figure)) for figure in figures),
        ]
    )


def _command(line: str) -> str:
    return f"`{line}`" if line.startswith("python -m ") else "(the file holds the older name of its command)"


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _cells(figure: dict[str, Any]) -> list[str]:
    low_high = figure["interval"]
    return [
        f"`{figure['name'].removeprefix(_prefix)}`",
        f"{figure['value']:.2f}",
        "" if low_high is None else f"{low_high[0]:.2f} to {low_high[1]:.2f}",
        *("" if figure[key] is None else f"{figure[key]:.2f}" for key in ("ideal", "target")),
        str(figure["num_draws"]),
    ]


@click.command()
def write() -> None:
    """Write the tables into docs/benchmarks.md."""
    page.write_text(with_tables(page.read_text(encoding="utf-8"), tables()), encoding="utf-8")


if __name__ == "__main__":
    write()
