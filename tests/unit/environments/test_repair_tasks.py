"""What a seed draws: repositories, a defect that shows, tests that are seen, and cases that are not."""

from __future__ import annotations

import ast
import importlib
import json
import random

import pytest
from support.repairing_agents import the_task

from producers.environments.repair.actions import (
    ReplaceText,
    RunCommand,
    Submit,
    WriteFile,
    action_of,
)
from producers.environments.repair.defects import Defect, possible_defects
from producers.environments.repair.drawing import drawn_from, original
from producers.environments.repair.draws import draws
from producers.environments.repair.files import (
    ActionRefused,
    as_text,
    from_text,
    most_bytes,
    most_files,
    with_file,
    with_replaced,
)
from producers.environments.repair.workbench import Workbench
from rollog.kernel.errors import SandboxError

modules = tuple(sorted(draws))


def functions_of(module: str) -> set[str]:
    tree = ast.parse(original(module))
    return {
        node.name for node in tree.body if isinstance(node, ast.FunctionDef) and not node.name.startswith("_")
    }


@pytest.mark.parametrize("module", modules)
def test_every_function_of_a_module_has_arguments_and_gives_several_values_as_json(module: str) -> None:
    assert set(draws[module]) == functions_of(module)
    numbers = random.Random(5)
    place = importlib.import_module(f"producers.environments.repair.toolbox.{module}")
    for name, draw in draws[module].items():
        values = [getattr(place, name)(*draw(numbers)) for _ in range(40)]
        assert len(set(map(json.dumps, values))) > 1, name
        assert json.loads(json.dumps(values)) == values, name


@pytest.mark.parametrize("module", modules)
def test_a_defect_changes_its_place_and_nothing_else(module: str) -> None:
    source = original(module)
    defects = possible_defects(source)
    assert len(defects) >= 20
    for defect in defects:
        planted = defect.planted(source)
        ast.parse(planted)
        assert ast.dump(ast.parse(planted)) != ast.dump(ast.parse(source))
        changed = [
            number
            for number, lines in enumerate(
                zip(source.splitlines(), planted.splitlines(), strict=True), start=1
            )
            if lines[0] != lines[1]
        ]
        assert changed == [defect.line_number(source)]


@pytest.mark.parametrize(
    ("source", "changed"),
    [
        ("x = (a + b) * c", {"x = (a - b) * c", "x = (a + b) + c"}),
        ("x = a<b", {"x = a<=b", "x = a>b"}),
        ("x = a not in b", {"x = a in b"}),
        ("x = a and b and c", {"x = a or b and c", "x = a and b or c"}),
        ("x = min(a, 1)", {"x = max(a, 1)", "x = min(a, 2)", "x = min(a, 0)"}),
        (
            "x = 1 < a <= b",
            {"x = 2 < a <= b", "x = 0 < a <= b", "x = 1 <= a <= b", "x = 1 > a <= b"}
            | {"x = 1 < a < b", "x = 1 < a >= b"},
        ),
        ("'''a + b'''\nx = True  # 1 + 1", set()),
    ],
)
def test_the_places_are_operators_numbers_and_names_of_the_code(source: str, changed: set[str]) -> None:
    assert {defect.planted(source) for defect in possible_defects(source)} == changed


def test_a_seed_draws_the_same_everywhere_and_another_seed_something_else() -> None:
    assert drawn_from(7, modules, 3) == drawn_from(7, modules, 3)
    assert drawn_from(7, modules, 3) != drawn_from(7 + 2**40, modules, 3)
    drawn = {drawn_from(seed, modules, 3).modules for seed in range(30)}
    assert len(drawn) > 20


def test_a_task_is_the_same_for_the_same_seed() -> None:
    assert the_task(3) == the_task(3)
    assert the_task(3) != the_task(4)


@pytest.mark.parametrize("seed", [1, 2, 2**40])
def test_a_defect_shows_in_tests_that_are_seen_and_in_more_that_are_not(seed: int) -> None:
    task = the_task(seed)
    workbench = Workbench(30.0)
    returned = workbench.returned(task.files, [case.call for case in task.hidden])
    assert returned is not None
    failing = [
        case for case, each in zip(task.hidden, returned, strict=True) if not each.agrees(case.expected)
    ]
    assert len(failing) >= 2
    assert {case.call.module for case in failing} == {f"toolbox.{task.module}"}
    outcome = workbench.run(task.files, "python3 -m unittest")
    assert outcome.result.exit_status == 1
    assert f"tests.test_{task.module}".encode() in outcome.result.stdout
    right = {**task.files, f"toolbox/{task.module}.py": original(task.module).encode()}
    assert workbench.run(right, "python3 -m unittest").result.exit_status == 0


def test_no_hidden_case_is_among_the_tests_that_are_seen() -> None:
    task = the_task(5)
    tests = b"".join(content for path, content in task.files.items() if path.startswith("tests/")).decode()
    for case in task.hidden:
        arguments = ", ".join(map(repr, case.call.arguments))
        assert f".{case.call.entry_point}({arguments})" not in tests


def test_a_module_that_does_not_end_is_no_task_and_one_that_a_limit_ends_is_an_error() -> None:
    calls = [drawn_from(1, ["days"], 1).cases["days"][0].call]
    forever = {
        "toolbox/__init__.py": b"",
        "toolbox/days.py": b"def is_leap(year):\n    while True:\n        pass\n",
    }
    assert Workbench(10.0).returned(forever, calls, most_lines=10_000) is None
    kills = {**forever, "toolbox/days.py": b"import os\nos.kill(2, 9)\n"}
    with pytest.raises(SandboxError, match="was ended by sandbox"):
        Workbench(10.0).returned(kills, calls, most_lines=10_000)


@pytest.mark.parametrize(
    ("said", "action"),
    [
        ("Look:\n```sh\nls -l\n```\nand wait", RunCommand("ls -l\n")),
        ("```write a/b.py\nx = 1\n\n```", WriteFile("a/b.py", "x = 1\n\n")),
        ("````write a.md\n```sh\nls\n```\n````", WriteFile("a.md", "```sh\nls\n```\n")),
        ("```replace a.py\nx\ny\n=====\nz\n```", ReplaceText("a.py", "x\ny\n", "z\n")),
        ("```replace a.py\nx\n=====\n```", ReplaceText("a.py", "x\n", "")),
        ("done\n```submit\n```", Submit()),
        (" submit\n", Submit()),
        ("```python\nprint(1)\n```\n```sh\nls\n```", RunCommand("ls\n")),
    ],
)
def test_an_action_is_the_one_block_of_a_turn(said: str, action: object) -> None:
    assert action_of(said) == action


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ("", "0 actions"),
        ("```sh\nls", "0 actions"),
        ("```sh\nls\n```\n```submit\n```", "2 actions"),
        ("```replace a.py\nx\n```", "a line ====="),
        (f"```sh\n{'x' * 20_000}\n```", "16000 characters"),
        ("```sh\nls \0\n```", "no text"),
        ("```sh\nls \ud800\n```", "no text"),
        ("I will submit", "0 actions"),
    ],
)
def test_a_turn_without_one_action_is_refused_with_what_to_say(said: str, why: str) -> None:
    with pytest.raises(ActionRefused, match=why):
        action_of(said)


@pytest.mark.parametrize("path", ["/etc/passwd", "../x", "a/../../x", "", ".", "a\nb", "x" * 201])
def test_a_path_that_leads_out_of_the_work_directory_is_refused(path: str) -> None:
    with pytest.raises(ActionRefused, match="no path below"):
        with_file({}, path, b"x")
    with pytest.raises(ValueError, match="no path below"):
        from_text(json.dumps({path: "x"}))


def test_files_are_bounded_and_no_file_is_a_directory() -> None:
    with pytest.raises(ActionRefused, match="262144 bytes at most"):
        with_file({}, "a", bytes(most_bytes))
    many = {str(number): b"" for number in range(most_files)}
    assert with_file(many, "0", b"x")
    with pytest.raises(ActionRefused, match="200 files"):
        with_file(many, "a", b"x")
    with pytest.raises(ActionRefused, match="a is there"):
        with_file({"a": b""}, "a/b", b"")
    with pytest.raises(ActionRefused, match="a/b is there"):
        with_file({"a/b": b""}, "a", b"")


def test_a_text_is_replaced_where_it_is_there_once() -> None:
    files = {"a": b"x = 1\ny = 1\n"}
    assert with_replaced(files, "a", "x = 1\n", "x = 2\n") == {"a": b"x = 2\ny = 1\n"}
    for old, why in (("= 1\n", "2 times"), ("z", "0 times"), ("", "0 times")):
        with pytest.raises(ActionRefused, match=why):
            with_replaced(files, "a", old, "")
    with pytest.raises(ActionRefused, match="no file b"):
        with_replaced(files, "b", "x", "y")


def test_files_are_the_same_after_they_were_text_whatever_their_bytes_are() -> None:
    files = {"a/b": bytes(range(256)), "é": b""}
    text = as_text(files)
    assert text.isascii()
    assert from_text(text) == files


def test_a_defect_knows_its_line() -> None:
    assert Defect(4, "1", "2").line_number("a\nb\n1") == 3
