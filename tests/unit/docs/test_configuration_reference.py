"""The configuration page is the one that the code writes."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import pytest

from rollog.settings.reference import algorithm_defaults, configuration_reference
from rollog.settings.scopes import keys_of_scope
from rollog.settings.section import Scope
from rollog.settings.settings import Settings
from rollog.settings.training import AlgorithmConfig, AlgorithmType

page = Path(__file__).parents[3] / "docs" / "configuration.md"


def test_the_page_is_what_the_code_writes() -> None:
    written = "python -m rollog.settings.reference > docs/configuration.md"
    assert page.read_text(encoding="utf-8") == configuration_reference(), f"write the page anew: {written}"


def test_the_defaults_of_every_algorithm_are_those_of_the_code() -> None:
    text = (page.parent / "algorithms.md").read_text(encoding="utf-8")
    assert algorithm_defaults() in text, (
        "put the table of rollog.settings.reference.algorithm_defaults() there"
    )


def test_every_setting_of_the_algorithms_is_explained() -> None:
    text = (page.parent / "algorithms.md").read_text(encoding="utf-8")
    assert [key for key in AlgorithmConfig.model_fields if f"`{key}" not in text] == []
    assert [name for name in get_args(AlgorithmType) if text.count(f"| `{name}` |") != 2] == []


def test_every_section_and_key_is_there_once_with_its_meaning() -> None:
    text = configuration_reference()
    for name, declared in Settings.model_fields.items():
        assert text.count(f"\n### [{name}]\n") == 1
        assert isinstance(declared.annotation, type)
    for line in text.splitlines():
        if line.startswith("| `"):
            *_, meaning, end = line.replace("\\|", "").split(" | ")[-1].rpartition("|")
            assert end == ""
            assert meaning.strip()


def test_bounds_choices_and_defaults_are_told() -> None:
    lines = configuration_reference().splitlines()
    assert (
        "| `seed` | integer >= 0, < 2147483648 | `0` | Seed of dataset order, sampling and training. |"
        in lines
    )
    assert any(line.startswith('| `action` | `regenerate`, `drop` | `"regenerate"` |') for line in lines)
    assert any(line.startswith("| `betas` | list of 2 numbers | `[0.9, 0.95]` |") for line in lines)
    alpha = "| `alpha` | number >= 0 or `auto` or list of [integer >= 0, number >= 0] | `1.0` |"
    assert any(line.startswith(alpha) for line in lines)
    assert any(line.startswith("| `held_out` | string | none |") for line in lines)


@pytest.mark.parametrize(
    ("mark", "scope"),
    [
        ("*Amendable.*", Scope.AMENDABLE),
        ("*Per machine.*", Scope.PER_MACHINE),
        ("*Per machine, not in the manifest.*", Scope.SECRET),
    ],
)
def test_keys_are_marked_by_where_they_may_change(mark: str, scope: Scope) -> None:
    marked = set()
    section = ""
    for line in configuration_reference().splitlines():
        if line.startswith("### ["):
            section = line.strip("# []")
        elif line.startswith("| `") and line.endswith(f" {mark} |"):
            marked.add(f"{section}.{line.split('`')[1]}")
    assert marked == keys_of_scope(scope) != set()
