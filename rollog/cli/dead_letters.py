"""`rollog dead-letters`: the records of a run that could not be used."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from rollog.cli.options import recorded_run_options
from rollog.kernel.printable import printable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from consumers.dead_letters import Reinjection, StoredDeadLetter
    from rollog.run.request import RecordedRunRequest


@click.command(name="dead-letters")
@recorded_run_options
@click.option(
    "--reinject", is_flag=True, help="Write again the samples and evaluations that can be used now."
)
@click.option("--letter", "chosen", type=int, multiple=True, metavar="ID", help="Only this one; repeatable.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, with the bytes in hexadecimal.")
def dead_letters(source: RecordedRunRequest, reinject: bool, chosen: tuple[int, ...], as_json: bool) -> None:
    """List the dead letters of RUN: records that could not be decoded or were not valid where they stood.

    --reinject is for after a fix, for example an update of rollog that can read them: each record that can be used now
    is written to its topic again, once and never twice, and judged like any other late sample. Tasks, heartbeats and
    records of the dispatcher and the trainer are not: those are only valid at their time.

    Consumes dead-letters; with --reinject also steps, samples and evaluations, and produces samples and evaluations.
    """
    from consumers import dead_letters as letters  # noqa: PLC0415  # help needs no Kafka
    from rollog.kernel.broker.rights import Role  # noqa: PLC0415
    from rollog.rules.headers import SampleLimits  # noqa: PLC0415
    from rollog.run.recorded_run import open_run  # noqa: PLC0415

    if reinject:
        source.refuse_copies()
    with open_run(source, role=Role.ADMINISTRATOR if reinject else Role.READER) as run:
        if not reinject:
            found = letters.chosen_dead_letters(
                letters.read_dead_letters(run.broker, run.topics), chosen or None
            )
            _print(letter_lines(found), [_letter(each) for each in found], as_json=as_json)
            return
        outcomes = letters.reinject(
            run.broker,
            run.topics,
            limits=SampleLimits(
                num_partitions=run.settings.broker.samples_partitions,
                num_replicas=run.settings.groups.num_replicas,
                temperature=run.settings.sampling.temperature,
                has_late_rewards=run.settings.reward.late,
            ),
            chosen=chosen or None,
        )
        _print(outcome_lines(outcomes), [_outcome(each) for each in outcomes], as_json=as_json)


def letter_lines(letters: list[StoredDeadLetter]) -> Iterator[str]:
    """The letters for a terminal."""
    yield f"{len(letters)} dead letters"
    for stored in letters:
        letter = stored.letter
        headers = " ".join(f"{name}={_text(value)}" for name, value in sorted(letter.headers.items()))
        size = "no value" if letter.value is None else f"{len(letter.value)} bytes"
        yield printable(
            f"#{stored.letter_id} {_time(stored)} {letter.topic}, partition {letter.partition}, "
            f"offset {letter.offset}, set aside by {letter.owner or 'unknown'}: "
            f"{letter.error_class}: {letter.reason} ({size}{'; ' + headers if headers else ''})"
        )


def outcome_lines(outcomes: list[Reinjection]) -> Iterator[str]:
    """What became of each letter, for a terminal."""
    num_done = sum(outcome.is_done for outcome in outcomes)
    yield f"{num_done} of {len(outcomes)} dead letters written again"
    for outcome in outcomes:
        what = "written again" if outcome.is_done else f"left alone: {printable(outcome.reason)}"
        yield f"#{outcome.letter_id} {what}"


def _print(lines: Iterator[str], values: list[dict[str, Any]], *, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(values, indent=2))
        return
    for line in lines:
        click.echo(line)


def _letter(stored: StoredDeadLetter) -> dict[str, Any]:
    letter = stored.letter
    return {
        "letter": stored.letter_id,
        "time": _time(stored),
        "topic": letter.topic,
        "partition": letter.partition,
        "offset": letter.offset,
        "owner": letter.owner,
        "error_class": letter.error_class,
        "reason": letter.reason,
        "key": None if letter.key is None else letter.key.hex(),
        "value": None if letter.value is None else letter.value.hex(),
        "headers": {name: _text(value) for name, value in letter.headers.items()},
    }


def _outcome(outcome: Reinjection) -> dict[str, Any]:
    return {"letter": outcome.letter_id, "reinjected": outcome.is_done, "reason": outcome.reason}


def _time(stored: StoredDeadLetter) -> str:
    return datetime.fromtimestamp(stored.timestamp_ms / 1000, UTC).isoformat(timespec="seconds")


def _text(value: bytes) -> str:
    return printable(value.decode("utf-8", errors="replace")[:200])
