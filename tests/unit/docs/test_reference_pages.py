"""The reference pages are those that the code writes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click
import pytest

from rollog.cli.main import cli
from rollog.cli.reference import command_reference
from rollog.kernel.broker.topics import OptionalTopic, RunTopics, run_topic_names
from rollog.settings.rights_reference import rights_reference
from rollog.settings.topic_reference import records_by_topic, topic_reference
from schemas.catalogue import load_catalogue
from schemas.payloads import SamplePayload
from schemas.records import record_types
from schemas.reference import schema_reference

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

folder = Path(__file__).parents[3] / "docs" / "reference"


@pytest.mark.parametrize(
    ("name", "module", "written"),
    [
        ("commands.md", "rollog.cli.reference", command_reference),
        ("topics.md", "rollog.settings.topic_reference", topic_reference),
        ("rights.md", "rollog.settings.rights_reference", rights_reference),
        ("schemas.md", "schemas.reference", schema_reference),
    ],
)
def test_a_page_is_what_the_code_writes(name: str, module: str, written: Callable[[], str]) -> None:
    told = f"write the page anew: python -m {module} > docs/reference/{name}"
    assert (folder / name).read_text(encoding="utf-8") == written(), told


def test_every_command_has_a_section_with_its_options() -> None:
    sections = dict(section.split("\n", 1) for section in command_reference().split("\n## ")[1:])
    assert list(sections) == [name for name, _ in commands(cli, "rollog")]
    for name, command in commands(cli, "rollog"):
        for parameter in command.params:
            assert not isinstance(parameter, click.Option) or parameter.opts[0] in sections[name], name


def commands(command: click.Command, name: str) -> Iterator[tuple[str, click.Command]]:
    yield name, command
    if isinstance(command, click.Group):
        for below in sorted(command.commands):
            yield from commands(command.commands[below], f"{name} {below}")


def test_every_topic_is_there_and_every_record_is_on_one() -> None:
    names = run_topic_names(RunTopics("", ""), tuple(OptionalTopic))
    assert set(records_by_topic) == {*(name.removeprefix("..") for name in names), "runs"}
    assert {each for records in records_by_topic.values() for each in records} == {
        record for record in record_types if record is not SamplePayload
    }


def test_every_field_of_every_record_has_its_line() -> None:
    text = schema_reference()
    for name, schema in load_catalogue().current.items():
        section = text.partition(f"\n## {name}\n")[2].partition("\n## ")[0]
        for field in schema.definition["fields"]:
            assert f"| `{field['name']}` | " in section, (name, field["name"])
            assert field["doc"].replace("|", "\\|") in section
