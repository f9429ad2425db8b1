"""The hand-written pages name only what exists: files, functions, settings, records, topics, commands, metrics."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import schemas
from rollog.broker.topics import RunTopics, run_topic_names
from rollog.cli.main import cli
from rollog.cli.settings import Settings
from rollog.config import Section
from schemas import Disposition, LedgerKind, Status
from schemas.records import Record

if TYPE_CHECKING:
    from collections.abc import Iterator

root = Path(__file__).parents[3]
pages = [root / "README.md", *sorted((root / "docs").glob("*.md"))]
every_page = pytest.mark.parametrize("page", pages, ids=lambda page: page.name)
packages = ("schemas", "rollog", "producers", "consumers", "trainer")


def prose(page: Path) -> str:
    """A page without its code blocks."""
    return re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)


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
        if not re.fullmatch(r"[\w/.*-]+\.(py|toml|yml|avsc)", word) or "*" in word:
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
        section, dot, key = word.split(" ")[0].partition(".")
        declared = Settings.model_fields.get(section)
        if not dot or declared is None or not re.fullmatch(r"[a-z_]+", key) or key in {"py", "run_once"}:
            continue
        model = declared.annotation
        assert isinstance(model, type)
        assert issubclass(model, Section)
        if key not in model.model_fields:
            assert is_function(section, key), word


@every_page
def test_commands_named_in_the_text_exist(page: Path) -> None:
    for name in re.findall(r"\brollog ([a-z]+)\b", page.read_text(encoding="utf-8")):
        if name in {"up", *cli.commands}:
            assert name in cli.commands


def test_the_places_named_in_the_state_tables_exist() -> None:
    text = (root / "docs" / "protocol.md").read_text(encoding="utf-8")
    for row in re.findall(r"^\|.*\|$", text, flags=re.MULTILINE):
        for module, function in re.findall(r"`(?:[\w/]+/)?([a-z_]+)\.([A-Za-z_][\w.]*)`", row.split(" | ")[-1]):
            if module not in Settings.model_fields and function != "py":
                assert is_function(module, function.split(".")[-1]), f"{module}.{function}"


def test_every_disposition_kind_and_status_is_described() -> None:
    text = (root / "docs" / "protocol.md").read_text(encoding="utf-8")
    for word in (*Disposition, *LedgerKind, *Status):
        assert re.search(rf"\b{word.value}\b", text), word


@pytest.mark.parametrize("page", ["README.md", "docs/protocol.md"])
def test_every_topic_and_every_record_on_it_is_in_the_table(page: str) -> None:
    text = (root / page).read_text(encoding="utf-8")
    for name in run_topic_names(RunTopics("", "")):
        assert f"{name.rsplit('.', 1)[-1]}`" in text, name
    assert "<prefix>.runs" in text
    for record in Record.__args__:
        assert record.__name__ in text, record


def is_function(module: str, name: str) -> bool:
    """Whether a function, class or method of that name stands in a module of that name."""
    files = [path for package in packages for path in (root / package).rglob(f"{module}.py")]
    if module == "schemas":
        return hasattr(schemas, name)
    pattern = re.compile(rf"^\s*(async )?(def|class) {name}\b", flags=re.MULTILINE)
    return any(pattern.search(path.read_text(encoding="utf-8")) for path in files) or any(
        re.search(rf"^class {module}\b", text, flags=re.MULTILINE) and pattern.search(text)
        for package in packages
        for path in (root / package).rglob("*.py")
        for text in [path.read_text(encoding="utf-8")]
    )
