"""The runs of the learning experiment in its results file, from which a measurement that was cut off goes on."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from benchmarks.learning.cells import Cell, Measured, Part, Runs, Variant, in_order
from rollog.kernel.errors import ConfigError, DataError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path


def known_runs(path: Path | None, settings: Mapping[str, object]) -> Runs:
    """The runs of a results file, if there is one.

    Raises:
        DataError: the file is none of this benchmark.
        ConfigError: its runs were made under other settings than `settings`.
    """
    if path is None or not path.exists():
        return {}
    try:
        results = json.loads(path.read_text(encoding="utf-8"))
        there, runs = dict(results["settings"]), from_json(results["runs"])
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"--results {path} holds no results of this benchmark ({error!r}); name another file, or remove it"
        ) from error
    differing = sorted(key for key in {**there, **settings} if there.get(key) != settings.get(key))
    if differing:
        told = ", ".join(f"{key} = {there.get(key)} there, {settings.get(key)} here" for key in differing)
        raise ConfigError(
            f"the runs in --results {path} were made under other settings: {told}; name another file"
        )
    return runs


def results_details(runs: Runs, settings: Mapping[str, object]) -> dict[str, object]:
    """What `known_runs` reads, as entries of a results file."""
    return {"settings": dict(settings), "runs": to_json(runs)}


def to_json(runs: Runs) -> list[dict[str, Any]]:
    """Runs as a list for JSON, in order."""
    return [
        {**asdict(cell.variant), "seed": cell.seed, **asdict(runs[cell])}
        for cell in sorted(runs, key=in_order)
    ]


def from_json(kept: Iterable[Mapping[str, Any]]) -> Runs:
    """The opposite of `to_json`."""
    return {
        Cell(
            variant=Variant(
                part=Part(each["part"]),
                algorithm=each["algorithm"],
                lag=each["lag"],
                is_corrected=each["is_corrected"],
            ),
            seed=each["seed"],
        ): Measured(
            accuracy={int(version): value for version, value in each["accuracy"].items()},
            sampled_accuracy=each["sampled_accuracy"],
            effective_sample_size=each["effective_sample_size"],
            seconds=each["seconds"],
        )
        for each in kept
    }
