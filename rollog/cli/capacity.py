"""`rollog capacity`: what a run has stored, and what more samples would take."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from rollog.cli.json_file import json_option, write_json
from rollog.cli.options import recorded_run_options

if TYPE_CHECKING:
    from pathlib import Path

    from rollog.run.request import RecordedRunRequest


@click.command()
@click.option(
    "--samples",
    "num_samples",
    type=click.IntRange(min=1),
    default=1_000_000,
    show_default=True,
    help="Trained samples to reckon for.",
)
@click.option(
    "--price", type=click.FloatRange(min=0), help="Price of a GB (1e9 bytes) and month, in any currency."
)
@json_option
@recorded_run_options
def capacity(
    source: RecordedRunRequest, *, num_samples: int, price: float | None, json_path: Path | None
) -> None:
    """Say what RUN has stored, part by part, and what more samples of its kind would take.

    Counts records as they are: rollog compresses none, and Kafka adds a few percent. Weights are counted as they are: a
    version for each step. Checkpoints are not counted. docs/capacity.md says what each part grows with.

    Consumes every topic of the run, and sizes in the weights store; produces nothing.
    """
    from rollog.run.capacity import capacity_of  # noqa: PLC0415  # help needs no Kafka
    from rollog.run.recorded_run import open_run  # noqa: PLC0415

    with open_run(source) as run:
        found = capacity_of(run)
    for line in found.lines(num_samples, price):
        click.echo(line)
    if json_path is not None:
        write_json(json_path, found.as_json(num_samples))
