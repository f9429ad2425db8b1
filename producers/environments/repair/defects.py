"""Defects: one operator or number of a module changed in its text, all else byte for byte as it was.

The syntax tree says where; the text is what is changed, for a text made from the tree would show by its layout which
module was touched.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_operators: dict[type[ast.AST], tuple[str, tuple[str, ...]]] = {
    ast.Lt: ("<", ("<=", ">")),
    ast.LtE: ("<=", ("<", ">=")),
    ast.Gt: (">", (">=", "<")),
    ast.GtE: (">=", (">", "<=")),
    ast.Eq: ("==", ("!=",)),
    ast.NotEq: ("!=", ("==",)),
    ast.In: ("in", ("not in",)),
    ast.NotIn: ("not in", ("in",)),
    ast.Add: ("+", ("-",)),
    ast.Sub: ("-", ("+",)),
    ast.Mult: ("*", ("+",)),
    ast.FloorDiv: ("//", ("*", "%")),
    ast.Mod: ("%", ("//",)),
    ast.And: ("and", ("or",)),
    ast.Or: ("or", ("and",)),
}
_swapped_names = {"min": "max", "max": "min"}


@dataclass(frozen=True, slots=True)
class Defect:
    """One place of a module's text: from `start` on, `old` becomes `new`."""

    start: int
    old: str
    new: str

    def planted(self, source: str) -> str:
        """The text with the defect in it."""
        end = self.start + len(self.old)
        assert source[self.start : end] == self.old
        return source[: self.start] + self.new + source[end:]

    def line_number(self, source: str) -> int:
        """1 for the first line."""
        return source.count("\n", 0, self.start) + 1


def possible_defects(source: str) -> list[Defect]:
    """All defects that can be planted in a module of ASCII text, in the order of their places."""
    assert source.isascii()
    text = _Text(source)
    found = {defect for node in ast.walk(ast.parse(source)) for defect in _of(node, text)}
    return sorted(found, key=lambda defect: (defect.start, defect.new))


class _Text:
    """Places of a text by line and column, as the syntax tree gives them."""

    def __init__(self, source: str) -> None:
        self.source = source
        self._starts = [0]
        for line in source.splitlines(keepends=True):
            self._starts.append(self._starts[-1] + len(line))

    def start_of(self, node: ast.expr) -> int:
        return self._starts[node.lineno - 1] + node.col_offset

    def end_of(self, node: ast.expr) -> int:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return self._starts[node.end_lineno - 1] + node.end_col_offset


def _of(node: ast.AST, text: _Text) -> Iterator[Defect]:
    match node:
        case ast.Compare():
            operands = [node.left, *node.comparators]
            for operator, (left, right) in zip(node.ops, pairwise(operands), strict=True):
                yield from _between(operator, left, right, text)
        case ast.BinOp():
            yield from _between(node.op, node.left, node.right, text)
        case ast.BoolOp():
            for left, right in pairwise(node.values):
                yield from _between(node.op, left, right, text)
        case ast.Constant(value=int() as number) if not isinstance(number, bool):
            start = text.start_of(node)
            old = text.source[start : text.end_of(node)]
            yield Defect(start, old, str(number + 1))
            if number > 0:
                yield Defect(start, old, str(number - 1))
        case ast.Call(func=ast.Name(id=name)) if name in _swapped_names:
            yield Defect(text.start_of(node.func), name, _swapped_names[name])


def _between(operator: ast.AST, left: ast.expr, right: ast.expr, text: _Text) -> Iterator[Defect]:
    """Defects of an operator, which stands between its operands; only brackets and space stand there besides."""
    if type(operator) not in _operators:
        return
    written, others = _operators[type(operator)]
    start = text.source.index(written, text.end_of(left), text.start_of(right))
    for new in others:
        yield Defect(start, written, new)
