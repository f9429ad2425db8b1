"""`rollog audit`: the invariants of a run, checked on its topics and its weights store."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import click

from rollog.cli.json_file import json_option, write_json
from rollog.cli.options import recorded_run_options
from rollog.kernel.printable import printable

if TYPE_CHECKING:
    from pathlib import Path

    from consumers.audit.report import AuditReport
    from rollog.run.request import RecordedRunRequest

_sha256 = re.compile(r"[0-9a-fA-F]{64}")


@click.command()
@click.option(
    "--head",
    metavar="SHA256",
    help="Head of the ledger kept elsewhere, as a summary shows it: must be in the chain.",
)
@click.option("--no-weights-files", is_flag=True, help="Do not read the files of the weights store.")
@json_option
@recorded_run_options
def audit(
    source: RecordedRunRequest, head: str | None, no_weights_files: bool, json_path: Path | None
) -> int:
    """Check a run, live or finished: nothing lost, nothing twice, nothing too old, nothing altered.

    Checks the ledger's hash chain, the bytes of every sample judged and the invariants I1 to I6, I11 and I12 on the
    topics and the weights store alone, and prints what was checked with counts. Exit status 1 and the exact records
    when something is off. What retention has deleted is named, and not counted as checked. docs/audit.md says what
    each check means and what none of them can show.

    Consumes steps, samples, tasks, control, weights, evaluations, workers and dead-letters; produces nothing on the
    log.
    """
    from rollog.run.auditing import audit_opened  # noqa: PLC0415  # help needs no Kafka
    from rollog.run.manifest_check import manifest_to_audit  # noqa: PLC0415
    from rollog.run.recorded_run import open_run  # noqa: PLC0415

    kept = None if head is None else checked_head(head)
    with open_run(source, manifest_to_audit) as run:
        report = audit_opened(run, head=kept, has_weights_files=not no_weights_files)
    return tell(report, json_path)


def tell(report: AuditReport, json_path: Path | None = None) -> int:
    """Print a report, write it where asked to; returns the exit status."""
    for line in report.lines():
        click.echo(printable(line))
    if json_path is not None:
        write_json(json_path, report.as_json())
    return 0 if report.is_clean else 1


def checked_head(text: str) -> str:
    """A head in the form of the chain. Raises ConfigError for anything else."""
    from rollog.kernel.errors import ConfigError  # noqa: PLC0415

    if not _sha256.fullmatch(text):
        raise ConfigError(
            f"--head {text!r} is no sha256: give the 64 hexadecimal digits that `rollog audit` or a summary showed"
        )
    return text.lower()
