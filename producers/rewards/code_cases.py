"""What code is tested with: inputs, which go into the sandbox, and expected outputs, which never do.

Code in a sandbox can write, print and end as it likes. All it says is compared here with what it has not seen: to say
what is right, it has to compute it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

solution_module = "solution"
"""The code lies in the work directory under this name."""

_command = ["-s", "-B"]
_too_many_lines = 3
_begin = """
import importlib, json, os, sys
request = json.load(sys.stdin)
answer = os.fdopen(os.dup(1), "w")
nothing = os.open(os.devnull, os.O_RDWR)
os.dup2(nothing, 0)
os.dup2(nothing, 1)
def found(module, entry_point):
    target = importlib.import_module(module)
    for name in entry_point.split("."):
        target = getattr(target() if isinstance(target, type) else target, name)
    return target
"""
_call = f"""{_begin}
json.dump(found({solution_module!r}, request["entry_point"])(*request["arguments"]), answer)
answer.flush()
os._exit(0)
"""
_calls = f"""{_begin}
lines_left = request["most_lines"]
def count(frame, event, argument):
    global lines_left
    lines_left -= event == "line"
    if lines_left < 0:
        os._exit({_too_many_lines})
    return count
if lines_left is not None:
    sys.settrace(count)
for module, entry_point, arguments in request["calls"]:
    try:
        said = json.dumps({{"value": found(module, entry_point)(*arguments)}})
    except BaseException as error:
        said = json.dumps({{"error": type(error).__name__}})
    print(said, file=answer)
answer.flush()
os._exit(0)
"""
_relative_tolerance = 1e-9
_absolute_tolerance = 1e-12


@dataclass(frozen=True, slots=True)
class TextCase:
    """A program that reads its standard input and writes its standard output."""

    stdin: bytes
    expected: str

    @property
    def arguments(self) -> list[str]:
        """Of the interpreter."""
        return [*_command, f"{solution_module}.py"]

    @property
    def expected_bytes(self) -> int:
        """Length of the expected output."""
        return len(self.expected.encode())

    def accepts(self, stdout: bytes) -> bool:
        """Whether the lines are those expected; spaces at their ends and empty lines at the end do not count."""
        return _lines(stdout.decode(errors="replace")) == _lines(self.expected)


@dataclass(frozen=True, slots=True)
class CallCase:
    """A call of a function, whose value comes back as JSON."""

    stdin: bytes
    expected: Any

    @property
    def arguments(self) -> list[str]:
        """Of the interpreter."""
        return [*_command, "-c", _call]

    @property
    def expected_bytes(self) -> int:
        """Length of the expected value as JSON."""
        return len(json.dumps(self.expected))

    def accepts(self, stdout: bytes) -> bool:
        """Whether what came back is one JSON document and agrees with the expected value."""
        try:
            return values_agree(json.loads(stdout), self.expected)
        except (ValueError, RecursionError):
            return False


Case = TextCase | CallCase


@dataclass(frozen=True, slots=True)
class Call:
    """A function of a module, and the JSON values that it is called with."""

    module: str
    entry_point: str
    arguments: Sequence[Any]


@dataclass(frozen=True, slots=True)
class Returned:
    """What a call gave, as JSON has it, or the name of what it raised."""

    value: object = None
    error: str | None = None

    def agrees(self, expected: object) -> bool:
        """Whether it is the expected value."""
        return self.error is None and values_agree(self.value, expected)


@dataclass(frozen=True, slots=True)
class CallBatch:
    """Several calls, one after another in one process; each value is read before the next call is made.

    With `most_lines` the process ends after so many lines of Python, a bound that is the same on every machine.
    """

    calls: Sequence[Call]
    most_lines: int | None = None

    @property
    def stdin(self) -> bytes:
        """What the process reads."""
        calls = [[call.module, call.entry_point, call.arguments] for call in self.calls]
        return json.dumps({"calls": calls, "most_lines": self.most_lines}).encode()

    @property
    def arguments(self) -> list[str]:
        """Of the interpreter."""
        return [*_command, "-c", _calls]

    def returned(self, stdout: bytes) -> list[Returned] | None:
        """What each call gave; None unless all of them are there."""
        lines = stdout.splitlines()
        if len(lines) != len(self.calls):
            return None
        try:
            return [_returned(json.loads(line)) for line in lines]
        except (ValueError, RecursionError):
            return None


def cases_of(tests: object, entry_point: object, cases: object) -> list[Case]:
    """The cases of a row. Raises ValueError for a row that has none, or says it otherwise."""
    if entry_point is not None or cases is not None:
        return _call_cases(entry_point, cases)
    if not isinstance(tests, Sequence) or isinstance(tests, str) or not tests:
        raise ValueError(
            "the row says nothing to test code with; give it `tests`, a list of {'input': text, 'output': text}, "
            "or `entry_point` and `cases`, a list of [arguments, expected]"
        )
    return [_text_case(index, test) for index, test in enumerate(tests)]


def values_agree(value: object, expected: object) -> bool:
    """Whether two JSON values are the same; numbers with a fraction to nine digits, true and 1 not at all."""
    if isinstance(expected, list):
        return (
            isinstance(value, list)
            and len(value) == len(expected)
            and all(map(values_agree, value, expected))
        )
    if isinstance(expected, dict):
        return (
            isinstance(value, dict)
            and value.keys() == expected.keys()
            and all(values_agree(value[key], expected[key]) for key in expected)
        )
    if isinstance(value, float) and isinstance(expected, float):
        return math.isclose(value, expected, rel_tol=_relative_tolerance, abs_tol=_absolute_tolerance)
    return isinstance(value, bool) == isinstance(expected, bool) and value == expected


def _text_case(index: int, test: object) -> TextCase:
    if isinstance(test, Mapping):
        text, expected = test.get("input"), test.get("output")
        if isinstance(text, str) and isinstance(expected, str):
            return TextCase(text.encode(errors="surrogateescape"), expected)
    raise ValueError(
        f"tests[{index}] of the row is {str(test)[:80]!r}; write {{'input': text, 'output': text}}"
    )


def _call_cases(entry_point: object, cases: object) -> list[Case]:
    if not isinstance(entry_point, str) or not all(name.isidentifier() for name in entry_point.split(".")):
        raise ValueError(
            f"entry_point of the row is {entry_point!r}; write a function's name, or Class.method"
        )
    if not isinstance(cases, Sequence) or isinstance(cases, str) or not cases:
        raise ValueError(
            f"cases of the row are {str(cases)[:80]!r}; write at least one pair [arguments, expected]"
        )
    return [_call_case(entry_point, index, case) for index, case in enumerate(cases)]


def _call_case(entry_point: str, index: int, case: object) -> CallCase:
    match case:
        case [list() | tuple() as arguments, expected]:
            request = {"entry_point": entry_point, "arguments": arguments}
            # Tuples become lists, and keys text, as they do in what comes back.
            return CallCase(json.dumps(request).encode(), json.loads(json.dumps(expected)))
    raise ValueError(f"cases[{index}] of the row is {str(case)[:80]!r}; write [list of arguments, expected]")


def _returned(answer: object) -> Returned:
    """What one line says. Raises ValueError where that is nothing that a call gives."""
    match answer:
        case {"value": value, **rest} if not rest:
            return Returned(value=value)
        case {"error": str(name), **rest} if not rest:
            return Returned(error=name)
    raise ValueError(f"{str(answer)[:80]!r} is no answer of a call")


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.rstrip().splitlines()]
