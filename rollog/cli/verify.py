"""`rollog verify`: recorded log-probabilities, computed again under the weights that each segment names."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from rollog.cli.json_file import json_option, write_json
from rollog.cli.options import recorded_run_options
from rollog.kernel.logs import configure_logging

if TYPE_CHECKING:
    from pathlib import Path

    from rollog.run.request import RecordedRunRequest
    from rollog.run.verifying import ScorerName


@click.command()
@click.option(
    "--step", type=click.IntRange(min=1), help="Only the samples of the step that made this version."
)
@click.option(
    "--share",
    type=click.FloatRange(min=0, max=1, min_open=True),
    default=1.0,
    show_default=True,
    help="Share of the samples, drawn by --seed.",
)
@click.option(
    "--seed",
    type=int,
    default=0,
    show_default=True,
    help="Another seed draws another share; the same, the same.",
)
@click.option("--untrained", is_flag=True, help="Finished samples that were not trained, too.")
@click.option(
    "--engine",
    type=click.Choice(["transformers", "vllm"]),
    default="transformers",
    show_default=True,
    help="What computes again: the trainer's own policy, or vLLM (at temperature 1 only).",
)
@click.option(
    "--tolerance",
    type=click.FloatRange(min=0, min_open=True),
    metavar="NATS",
    help="Difference from which a token is off; by default from the run's dtype.",
)
@click.option(
    "--require-all", is_flag=True, help="Exit status 1 also where a chosen sample could not be checked."
)
@json_option
@recorded_run_options
def verify(
    source: RecordedRunRequest,
    *,
    step: int | None,
    share: float,
    seed: int,
    untrained: bool,
    engine: ScorerName,
    tolerance: float | None,
    require_all: bool,
    json_path: Path | None,
) -> int:
    """Compute recorded log-probabilities again under the weights that each segment names, and compare.

    Finds a worker that went on with old weights, a label that is wrong, log-probabilities that were altered. Prints the
    differences by version and worker. Exit status 1 when something is off, or nothing could be compared; what could
    not be checked is named, and fails with --require-all. docs/audit.md says what it shows and what it cannot.

    Works on a run that goes on, on one that is over, and with --archive. Consumes steps, weights and samples; produces
    nothing on the log.
    """
    from consumers.verification.selection import Selection  # noqa: PLC0415  # help needs no Kafka
    from rollog.run.verifying import VerifyRequest, verify_run  # noqa: PLC0415

    configure_logging()
    selection = Selection(step=step, share=share, seed=seed, with_untrained=untrained)
    request = VerifyRequest(selection=selection, engine=engine, tolerance=tolerance, require_all=require_all)
    outcome = verify_run(source, request)
    for line in outcome.lines():
        click.echo(line)
    if json_path is not None:
        write_json(json_path, outcome.as_json())
    return outcome.exit_status
