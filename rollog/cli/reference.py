"""The reference of commands: every command with its arguments and options, as click knows them.

    python -m rollog.cli.reference > docs/reference/commands.md

writes the page anew; a test compares it with the code.
"""

from __future__ import annotations

import re
from textwrap import dedent
from typing import TYPE_CHECKING

import click

from rollog.cli.main import cli

if TYPE_CHECKING:
    from collections.abc import Iterator

_introduction = """\
# Commands

This page is written by `python -m rollog.cli.reference > docs/reference/commands.md` from the modules in `rollog/cli/`;
change those, not the page. `rollog COMMAND --help` says the same. What an exit status means is in
[operations](../operations.md#exit-statuses); the keys of `--set` are in [configuration](../configuration.md).
"""


def command_reference() -> str:
    """The page as Markdown."""
    sections = [_section(context) for context in _contexts(click.Context(cli, info_name="rollog"))]
    return "\n".join([_introduction, *sections])


def _contexts(context: click.Context) -> Iterator[click.Context]:
    """A command, then those below it, in the order in which help lists them."""
    yield context
    command = context.command
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            if below is not None:
                yield from _contexts(click.Context(below, info_name=name, parent=context))


def _section(context: click.Context) -> str:
    command = context.command
    usage = " ".join([context.command_path, *command.collect_usage_pieces(context)])
    parts = [f"## {context.command_path}", "", f"    {usage}", "", *_paragraphs(command.help or "")]
    if rows := [_row(*record) for record in _options(context)]:
        parts += ["| option | meaning |", "| --- | --- |", *rows, ""]
    return "\n".join(parts)


def _paragraphs(text: str) -> Iterator[str]:
    for paragraph in dedent(text).split("\n\n"):
        yield _escaped(" ".join(paragraph.split()))
        yield ""


def _options(context: click.Context) -> Iterator[tuple[str, str]]:
    for parameter in context.command.get_params(context):
        record = parameter.get_help_record(context)
        if record is not None and isinstance(parameter, click.Option) and "--help" not in parameter.opts:
            yield record


def _row(names: str, meaning: str) -> str:
    cells = (f"`{names}`", _escaped(meaning))
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _escaped(text: str) -> str:
    """Text whose angle brackets, outside of code, are shown as they are."""
    pieces = re.split(r"(`[^`]*`)", text)
    return "".join(piece if piece.startswith("`") else piece.replace("<", "&lt;") for piece in pieces)


if __name__ == "__main__":
    click.echo(command_reference(), nl=False)
