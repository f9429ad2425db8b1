"""`rollog lineage`: where a sample, a step, a version or a prompt comes from, and what became of it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from rollog.cli.options import recorded_run_options
from rollog.kernel.printable import printable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from consumers.lineage import Lineage
    from rollog.run.request import RecordedRunRequest
    from schemas import Disposition


@click.command()
@recorded_run_options
@click.option(
    "--sample", metavar="ID", help="Prompt, tasks, worker, versions, reward, disposition, attempts."
)
@click.option("--step", type=int, metavar="N", help="The samples of a training step, in order.")
@click.option("--version", type=int, metavar="N", help="What made a policy version, and its ancestors.")
@click.option("--prompt", metavar="ID", help="Every group made of a prompt, with every attempt.")
@click.option(
    "--disposition",
    metavar="NAME",
    help="The samples of a disposition, filtered say, and why they have it; of many, the first 50.",
)
@click.option(
    "--kind",
    type=click.Choice(["training", "evaluation"]),
    help="With --sample: which is meant. Left out, the training sample, and evaluations where there is none.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def lineage(source: RecordedRunRequest, kind: str | None, as_json: bool, **asked: Any) -> None:
    """Trace one thing through RUN: name a --sample, a --step, a --version, a --prompt or a --disposition.

    Works on a run that goes on, on one that is over, and with --archive.

    Consumes steps, tasks, samples, evaluations and weights; produces nothing.
    """
    from consumers.lineage import Lineage  # noqa: PLC0415  # help needs no Kafka
    from rollog.kernel.errors import ConfigError  # noqa: PLC0415
    from rollog.run.recorded_run import open_run  # noqa: PLC0415

    named = {name: value for name, value in asked.items() if value is not None}
    if len(named) != 1:
        raise ConfigError(
            "name one of --sample ID, --step N, --version N, --prompt ID and --disposition NAME"
        )
    if kind is not None and "sample" not in named:
        raise ConfigError("--kind goes with --sample ID")
    with open_run(source) as run:
        answer = _answer(Lineage(run.broker, run.topics), kind, *named.popitem())
    if as_json:
        click.echo(json.dumps(answer, indent=2))
        return
    others, num_more = answer.pop("other_kinds", {}), answer.pop("num_more", 0)
    for line in answer_lines(answer):
        click.echo(line)
    if num_more:
        click.echo(f"and {num_more} more")
    for other, number in others.items():
        click.echo(f"{number} {other} record{'s' * (number > 1)} with the same id: --kind {other} shows them")


def _answer(traces: Lineage, kind: str | None, asked: str, value: Any) -> dict[str, Any]:
    from schemas import Kind  # noqa: PLC0415  # help needs no schemas

    match asked:
        case "sample":
            return traces.sample(value, None if kind is None else Kind(kind))
        case "disposition":
            return traces.disposition(_disposition(value))
        case "step":
            return traces.step(value)
        case "version":
            return traces.version(value)
        case _:
            return traces.prompt(value)


def _disposition(name: str) -> Disposition:
    from rollog.kernel.errors import ConfigError  # noqa: PLC0415
    from schemas import Disposition  # noqa: PLC0415

    try:
        return Disposition(name)
    except ValueError:
        known = ", ".join(each.value for each in Disposition)
        raise ConfigError(f"--disposition {name}: there is none of that name; there are {known}") from None


def answer_lines(answer: dict[str, Any], indent: str = "") -> Iterator[str]:
    """An answer for a terminal: one line per thing, without what is unknown or does not apply."""
    for name, value in answer.items():
        if value is None or value in ("", [], {}):
            continue
        if isinstance(value, list) and isinstance(value[0], dict):
            yield f"{indent}{printable(name)}: {len(value)}"
            for each in value:
                yield from _entry_lines(each, f"{indent}  ")
        else:
            yield f"{indent}{printable(name)}: {_text(value)}"


def _entry_lines(entry: dict[str, Any], indent: str) -> Iterator[str]:
    """One entry of a list: what is short on one line, lists of its own below."""
    short = {
        name: value
        for name, value in entry.items()
        if value is not None
        and value not in ("", [], {})
        and not (isinstance(value, list) and isinstance(value[0], dict))
    }
    yield f"{indent}- " + ", ".join(f"{printable(name)} {_text(value)}" for name, value in short.items())
    nested = {name: value for name, value in entry.items() if name not in short}
    yield from answer_lines(nested, f"{indent}  ")


def _text(value: Any) -> str:
    if isinstance(value, dict):
        known = ((name, each) for name, each in value.items() if each is not None and each != "")
        return "(" + ", ".join(f"{printable(name)} {_text(each)}" for name, each in known) + ")"
    if isinstance(value, list):
        return "[" + ", ".join(_text(each) for each in value) + "]"
    return printable(str(value))
