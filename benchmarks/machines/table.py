"""`python -m benchmarks.machines.table`: write what was measured last into docs/benchmarks.md."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from collections.abc import Iterator

page = Path(__file__).parents[2] / "docs" / "benchmarks.md"
results = Path(__file__).parent / "results" / "machines.json"
begin = "<!-- Written by `python -m benchmarks.machines.table`. -->"
end = "<!-- Until here: several machines. -->"


def written(found: dict[str, Any]) -> str:
    """The text about the results of one run."""
    return "\n".join(_lines(found))


def with_text(text: str, between: str) -> str:
    """The page `text` with another text between its marks. Raises ValueError for a page without them."""
    before, mark, rest = text.partition(begin)
    _, last_mark, after = rest.partition(end)
    if not mark or not last_mark:
        raise ValueError(f"the page has no {begin} ... {end}: put both lines where the figures belong")
    return f"{before}{begin}\n\n{between}\n\n{end}{after}"


def _lines(found: dict[str, Any]) -> Iterator[str]:
    recount = found["recount"]
    told = ", ".join(f"{name} {number}" for name, number in recount["dispositions"].items())
    yield (
        f"Measured {found['date']} ([machines.json](../benchmarks/machines/results/machines.json), {found['machine']}, "
        f"load average {found['load_average'][0]:.1f} at the end): {recount['num_steps']} steps, and the run closed."
    )
    yield (
        f"{sum(found['restarts'].values())} roles were started again; the audit and the recount from raw records found "
        f"nothing off ({recount['num_samples']} samples: {told}; {recount['num_trained_twice']} trained twice), and"
    )
    yield f"every step was replayed equal. Undisturbed, a step took {_undisturbed(found)} s."
    yield ""
    yield "| fault | steps | s a step | s undisturbed | ratio | 95 % interval | s lost | longest step, s |"
    yield "| --- | --- | --- | --- | --- | --- | --- | --- |"
    for row in found["phases"]:
        yield (
            f"| `{row['name']}` | {row['num_steps']} | {row['step_seconds']:.1f} | {row['undisturbed_seconds']:.1f} "
            f"| {row['ratio']:.2f} | {_interval(row['interval'])} | {row['lost_seconds']:.0f} "
            f"| {row['longest_step_seconds']:.1f} |"
        )
    yield ""
    yield "| link | loss each way | round trip | one TCP stream |"
    yield "| --- | --- | --- | --- |"
    for name, link in found["links"].items():
        yield (
            f"| `{name}` | {100 * link['loss']:.1f} % | {1000 * link['round_trip_seconds']:.1f} ms "
            f"| {link['megabits_per_second']:.0f} Mbit/s |"
        )


def _undisturbed(found: dict[str, Any]) -> str:
    (figure,) = (each for each in found["figures"] if each["name"] == "machines.step_seconds.undisturbed")
    return f"{figure['value']:.2f} {_interval(figure['interval'])}"


def _interval(interval: list[float] | None) -> str:
    return "-" if interval is None else f"[{interval[0]:.2f}, {interval[1]:.2f}]"


@click.command("table")
def table() -> None:
    """Write the figures of results/machines.json between the marks of docs/benchmarks.md."""
    found = json.loads(results.read_text(encoding="utf-8"))
    page.write_text(with_text(page.read_text(encoding="utf-8"), written(found)), encoding="utf-8")


if __name__ == "__main__":
    table()
