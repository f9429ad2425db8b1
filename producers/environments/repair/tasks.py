"""A task: a repository with a defect that shows, tests that the agent sees, and cases that it never sees."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING

from producers.environments.repair.drawing import drawn_from, original, package
from rollog.kernel.errors import SandboxError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from producers.environments.repair.defects import Defect
    from producers.environments.repair.drawing import Case, Drawn
    from producers.environments.repair.files import Files
    from producers.environments.repair.workbench import Workbench

_num_visible = 3
_least_failing = 3
"""Cases of one function that a defect has to fail: one is shown, the others stay hidden."""
_most_lines = 300_000
"""A module with a defect that runs longer than this is taken for one that does not end."""

_test = '''"""What the functions of {module} give, for a few arguments."""

import unittest

from {package} import {module}


class {title}Test(unittest.TestCase):
{methods}

if __name__ == "__main__":
    unittest.main()
'''
_readme = """# Toolbox

Small functions without state. What each of them gives is in its docstring.

    python3 -m unittest        runs the tests

{modules}
"""


@dataclass(frozen=True, slots=True)
class RepairTask:
    """One seed's task."""

    files: Files
    """The work directory at the beginning."""
    hidden: tuple[Case, ...]
    module: str
    defect: Defect

    @property
    def line_number(self) -> int:
        """Where the defect is."""
        return self.defect.line_number(original(self.module))


def task_of(seed: int, modules: Sequence[str], num_modules: int, workbench: Workbench) -> RepairTask:
    """The task of a seed, the same on every machine.

    Places are tried in their drawn order until a defect is clean: the module still ends, and gives something else for
    at least three calls of one function. Raises SandboxError where that cannot be found out.
    """
    drawn = drawn_from(seed, modules, num_modules)
    for module, defect in drawn.places:
        failing = _failing(drawn, module, defect, workbench)
        if failing is not None and _shows(failing):
            return _task(drawn, module, defect, failing)
    raise SandboxError(f"no defect of {', '.join(drawn.modules)} shows; draw from more modules")


def _failing(drawn: Drawn, module: str, defect: Defect, workbench: Workbench) -> list[Case] | None:
    """The cases of a module that a defect fails; None where it does not end or cannot be imported at all."""
    cases = drawn.cases[module]
    files = {
        f"{package}/__init__.py": b"",
        f"{package}/{module}.py": defect.planted(original(module)).encode(),
    }
    returned = workbench.returned(files, [case.call for case in cases], most_lines=_most_lines)
    if returned is None:
        return None
    return [case for case, each in zip(cases, returned, strict=True) if not each.agrees(case.expected)]


def _shows(failing: list[Case]) -> bool:
    return any(len(cases) >= _least_failing for cases in _by_function(failing))


def _task(drawn: Drawn, module: str, defect: Defect, failing: list[Case]) -> RepairTask:
    files = {"README.md": _readme_of(drawn.modules), f"{package}/__init__.py": original("__init__").encode()}
    files["tests/__init__.py"] = b""
    hidden: list[Case] = []
    for each in drawn.modules:
        source = original(each)
        files[f"{package}/{each}.py"] = (defect.planted(source) if each == module else source).encode()
        visible = [case for cases in _by_function(drawn.cases[each]) for case in _visible(cases, failing)]
        files[f"tests/test_{each}.py"] = _test_of(each, visible)
        hidden += [case for case in drawn.cases[each] if case not in visible]
    return RepairTask(files, tuple(hidden), module, defect)


def _visible(cases: list[Case], failing: list[Case]) -> list[Case]:
    """The first cases of a function, and among them one that fails, where enough others that fail stay hidden."""
    failed = [case for case in cases if case in failing]
    shown = failed[:1] if len(failed) >= _least_failing else []
    passed = [case for case in cases if case not in failing]
    chosen = shown + passed[: _num_visible - len(shown)]
    return [case for case in cases if case in chosen]


def _by_function(cases: Iterable[Case]) -> list[list[Case]]:
    return [list(group) for _, group in groupby(cases, key=lambda case: case.call.entry_point)]


def _test_of(module: str, cases: list[Case]) -> bytes:
    methods = [_method(module, each) for each in _by_function(cases)]
    title = module.title().replace("_", "")
    return _test.format(module=module, package=package, title=title, methods="\n".join(methods)).encode()


def _method(module: str, cases: list[Case]) -> str:
    name = cases[0].call.entry_point
    lines = [f"    def test_{name}(self):"]
    for case in cases:
        arguments = ", ".join(map(repr, case.call.arguments))
        lines.append(f"        self.assertEqual({module}.{name}({arguments}), {case.expected!r})")
    return "\n".join(lines) + "\n"


def _readme_of(modules: Sequence[str]) -> bytes:
    lines = [f"- `{package}/{module}.py`, with tests in `tests/test_{module}.py`" for module in modules]
    return _readme.format(modules="\n".join(lines)).encode()
