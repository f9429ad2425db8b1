"""What the page says was tried is what the tests try."""

from __future__ import annotations

import re
from pathlib import Path

page = (Path(__file__).parents[3] / "docs" / "sandbox.md").read_text(encoding="utf-8")
table = page.partition("## Escapes tried")[2].partition("\n## ")[0]
rows = [line.strip("| ").split(" | ") for line in table.splitlines() if line.startswith("| ")][2:]
tests_here = {
    name
    for file in Path(__file__).parent.glob("test_*.py")
    for name in re.findall(r"^def test_(\w+)", file.read_text(encoding="utf-8"), flags=re.MULTILINE)
}


def test_each_wall_of_the_page_has_two_tests_that_exist() -> None:
    assert len(rows) >= 18
    for wall, _, names in rows:
        tests = re.findall(r"`(\w+)`", names)
        assert len(set(tests)) >= 2, wall
        assert set(tests) <= tests_here, set(tests) - tests_here


def test_each_test_of_an_escape_is_on_the_page() -> None:
    named = set(re.findall(r"`(\w+)`", table))
    files = [*Path(__file__).parent.glob("test_sandbox_*escapes.py")]
    assert len(files) == 3
    for file in files:
        tests = set(re.findall(r"^def test_(\w+)", file.read_text(encoding="utf-8"), flags=re.MULTILINE))
        assert tests - named <= {"the_limits_given_are_those_in_force"}
