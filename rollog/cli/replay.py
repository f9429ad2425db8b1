"""`rollog replay`: train a recorded run once more and compare, or ask what other settings would have given."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from rollog.cli.json_file import json_option, write_json
from rollog.cli.options import recorded_run_options
from rollog.kernel.logs import configure_logging

if TYPE_CHECKING:
    from pathlib import Path

    from rollog.run.request import RecordedRunRequest


@click.command()
@click.option(
    "--from",
    "begin",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="Version to begin with; the newest checkpoint up to it is loaded, or version 0.",
)
@click.option("--to", "end", type=click.IntRange(min=1), help="Last version to make; the newest without it.")
@click.option("--into", metavar="NAME", help="With --set of training settings: name of the counterfactual.")
@click.option(
    "--ranks",
    "num_ranks",
    type=click.IntRange(min=1),
    help="Ranks to train on; as many as the run had without it. On others only distances are told.",
)
@json_option
@recorded_run_options
def replay(
    source: RecordedRunRequest,
    *,
    begin: int,
    end: int | None,
    into: str | None,
    num_ranks: int | None,
    json_path: Path | None,
) -> int:
    """Train a recorded run again from its topics and compare every step with the ledger.

    Exit status 0 when every step has the recorded sha256, loss and gradient norms, 1 when one differs. On other
    hardware or versions the distances are reported. Needs no rollout worker, and changes nothing of the run. On another
    number of ranks no step is called equal, and the replay begins with version 0.

    With --set of [algorithm], [optimizer] or [trainer] settings and --into NAME it asks what those settings would
    have made of the recorded samples. The answer, in HOME/counterfactuals/NAME, is marked as a counterfactual.

    Consumes steps, weights and samples; produces nothing on the log.
    """
    from rollog.run.replaying import ReplayRequest, replay_run  # noqa: PLC0415  # help needs no Kafka

    configure_logging()
    request = ReplayRequest(begin=begin, end=end, into=into, num_ranks=num_ranks)
    outcome = replay_run(source, request, click.echo)
    if json_path is not None:
        write_json(json_path, outcome.report)
    return outcome.exit_status
