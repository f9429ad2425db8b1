"""The hand-written pages name only what exists: files, functions, settings, records, topics, commands, metrics."""

from __future__ import annotations

import re
import shlex
from functools import cache
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING

import click
import pytest

from benchmarks.catalogue import experiments
from rollog.cli.main import cli
from rollog.kernel.broker.topics import OptionalTopic, RunTopics, run_topic_names
from rollog.settings.section import Section
from rollog.settings.settings import Settings
from schemas import Disposition, LedgerKind, Status
from schemas.records import Record

if TYPE_CHECKING:
    from collections.abc import Iterator

root = Path(__file__).parents[3]
pages = [root / "README.md", *sorted((root / "docs").rglob("*.md"))]
every_page = pytest.mark.parametrize("page", pages, ids=lambda page: page.relative_to(root).as_posix())
packages = ("schemas", "rollog", "producers", "consumers", "trainer", "benchmarks")
file_suffixes = ("json", "lock", "log", "md", "py", "toml")


def prose(page: Path) -> str:
    """A page without its code blocks, and without the first column of tables that begin with other people's words."""
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    return re.sub(r"^\| [^|]*\|", "|", text, flags=re.MULTILINE) if page.name == "coming-from.md" else text


def code_words(page: Path) -> Iterator[str]:
    """What stands between backticks."""
    yield from re.findall(r"`([^`\n]+)`", prose(page))


def anchors(page: Path) -> set[str]:
    titles = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


@every_page
def test_links_lead_to_files_and_headings_that_exist(page: Path) -> None:
    for target in re.findall(r"\]\(([^)]+)\)", prose(page)):
        if target.startswith("https://"):
            continue
        name, _, anchor = target.partition("#")
        file = (page.parent / name) if name else page
        assert file.is_file(), target
        assert not anchor or anchor in anchors(file), target


@every_page
def test_files_named_in_the_text_exist(page: Path) -> None:
    folder = root
    for word in code_words(page):
        if (
            not re.fullmatch(r"[\w/.*-]+\.(py|toml|yml|avsc)|benchmarks/[\w/.-]+\.(json|svg)", word)
            or "*" in word
        ):
            continue
        candidates = [root / word, folder / word, root / "rollog" / word]
        found = next((path for path in candidates if path.is_file()), None)
        if found is None and "/" not in word:
            found = next((path for name in packages for path in (root / name).rglob(word)), None)
        assert found is not None, word
        folder = found.parent


@every_page
def test_settings_named_in_the_text_exist(page: Path) -> None:
    for word in code_words(page):
        section, _, key = word.split(" ")[0].partition(".")
        declared = Settings.model_fields.get(section)
        if declared is None or not re.fullmatch(r"[a-z_]+", key) or key in file_suffixes:
            continue
        model = declared.annotation
        assert isinstance(model, type)
        assert issubclass(model, Section)
        assert key in model.model_fields or is_defined(section, key), word


@every_page
def test_commands_named_in_the_text_exist(page: Path) -> None:
    shell = re.findall(r"```sh\n(.*?)```", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    lines = [line for block in shell for line in block.splitlines()]
    for text in (*code_words(page), *lines):
        named = re.match(r"(?:\.venv/bin/)?rollog +([a-z]+(?:-[a-z]+)*)(?: +([a-z]+))?", text)
        if named is not None:
            name, following = named.groups()
            assert name in cli.commands, text
            command = cli.commands[name]
            assert not isinstance(command, click.Group) or following in {None, *command.commands}, text


@every_page
def test_commands_take_the_options_and_arguments_that_are_shown(page: Path) -> None:
    blocks = re.findall(r"```sh\n(.*?)```", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    lines = "".join(blocks).replace("\\\n", " ").splitlines()
    # In the text an option may be named without its value, and a command with dots for what does not matter.
    named = [word for word in code_words(page) if not re.search(r"\||\.\.\.|\[|'| --[a-z-]+$", word)]
    for line in (*lines, *named):
        words = list(takewhile(lambda word: word not in {">", "|", "&&"}, shlex.split(line, comments=True)))
        if not words or words.pop(0).removeprefix(".venv/bin/") != "rollog":
            continue
        command: click.Command = cli
        while isinstance(command, click.Group) and words and words[0] in command.commands:
            command = command.commands[words.pop(0)]
        if isinstance(command, click.Group):
            continue
        # Raises NoSuchOption; what it leaves over are arguments that the command does not take.
        _, left_over, _ = command.make_parser(click.Context(command)).parse_args(words)
        assert not left_over, line


@every_page
def test_experiments_named_in_the_text_exist(page: Path) -> None:
    named = re.findall(r"python -m benchmarks\.(\w+)", page.read_text(encoding="utf-8"))
    assert set(named) - {"NAME"} <= set(experiments)


def test_every_experiment_is_on_the_benchmarks_page() -> None:
    text = (root / "docs" / "benchmarks.md").read_text(encoding="utf-8")
    named = set(re.findall(r"\.venv/bin/python -m benchmarks\.(\w+)", text))
    assert named == set(experiments)


def test_the_places_named_in_the_state_tables_exist() -> None:
    text = (root / "docs" / "protocol.md").read_text(encoding="utf-8")
    places = [
        place
        for row in re.findall(r"^\|.*\|$", text, flags=re.MULTILINE)
        for place in re.findall(r"`(?:[\w/]+/)?([A-Za-z_]+\.[A-Za-z_][\w.]*)`", row.rsplit(" | ", 1)[-1])
        if not place.endswith(".py")
    ]
    assert len(places) > 50
    for place in places:
        module, *_, name = place.split(".")
        assert is_defined(module, name) or is_setting(module, name), place


def test_every_disposition_kind_and_status_is_described() -> None:
    text = (root / "docs" / "protocol.md").read_text(encoding="utf-8")
    for word in (*Disposition, *LedgerKind, *Status):
        assert re.search(rf"\b{word.value}\b", text), word


@pytest.mark.parametrize("page", ["docs/protocol.md"])
def test_every_topic_and_every_record_on_it_is_in_the_table(page: str) -> None:
    text = (root / page).read_text(encoding="utf-8")
    for name in run_topic_names(RunTopics("", ""), tuple(OptionalTopic)):
        assert f"{name.rsplit('.', 1)[-1]}`" in text, name
    assert "<prefix>.runs" in text
    for record in Record.__args__:
        assert record.__name__ in text, record


def is_defined(place: str, name: str) -> bool:
    """Whether a function or class of that name stands in a module, or in the class, called `place`."""
    definition = re.compile(rf"^\s*(async )?(def|class) {name}\b", flags=re.MULTILINE)
    owner = re.compile(rf"^class {place}\b", flags=re.MULTILINE)
    return any(
        definition.search(text)
        for path, text in sources().items()
        if path.stem == place or owner.search(text)
    )


@cache
def sources() -> dict[Path, str]:
    paths = (path for package in packages for path in (root / package).rglob("*.py"))
    return {path: path.read_text(encoding="utf-8") for path in paths}


def is_setting(section: str, key: str) -> bool:
    declared = Settings.model_fields.get(section)
    return declared is not None and key in getattr(declared.annotation, "model_fields", {})


def test_messages_quoted_in_troubleshooting_are_those_of_the_code() -> None:
    text = (root / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
    quoted = [
        message
        for cell in re.findall(r"^\| ([^|]*) \|", text, flags=re.MULTILINE)
        for message in re.findall(r"`([^`]+)`", cell)
        if " " in message
    ]
    assert len(quoted) > 40
    said = everything_said()
    for message in quoted:
        for part in re.split(r"\.\.\.|'|\d+|\b[A-Z]{3,}\b", message):
            assert part.strip(" ,;:") in said, (message, part)


@cache
def everything_said() -> str:
    """The code's text, with literals that stand one after the other joined, and that of the Makefile."""
    code = "\n".join(sources().values())
    joined = re.sub(r'"\s*\n\s*f?"', "", code)
    return joined + (root / "Makefile").read_text(encoding="utf-8")
