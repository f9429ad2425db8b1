"""The source of a compiled function under way, and how the values of a schema are held in memory.

A node of a schema comes with the type that a record's class declares for it. Without one, it is held as Avro values
are: records as dicts, arrays as lists, numeric arrays as bytes.
"""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from types import NoneType, UnionType
from typing import Any, get_args, get_origin, get_type_hints

from schemas.arrays import array_types, type_codes


class NotCompiled(Exception):
    """A schema holds a type that is not compiled."""


class Source:
    """Lines of a function under way, at a depth, with names that no other value of it has."""

    def __init__(self, scope: dict[str, Any]) -> None:
        self._lines: list[str] = []
        self._scope = dict(scope)
        self._types: dict[str, Any] = {}
        self._depth = 1
        self._num_names = 0

    def add(self, line: str) -> None:
        """One statement."""
        self._lines.append("    " * self._depth + line)

    def name(self, prefix: str) -> str:
        """A name for a value."""
        self._num_names += 1
        return f"{prefix}{self._num_names}"

    def constant(self, prefix: str, value: Any) -> str:
        """A name under which the function finds `value`."""
        name = self.name(prefix)
        self._scope[name] = value
        return name

    def nested(self, head: str) -> _Block:
        """What is added inside stands in the block of `head`."""
        self.add(head)
        return _Block(self)

    def shift(self, by: int) -> None:
        """Go deeper, or back."""
        self._depth += by

    def resolved(self, node: Any) -> Any:
        """A type with its definition: a name stands for what was defined under it before."""
        if isinstance(node, str):
            node = self._types.get(node, node)
        if isinstance(node, dict) and "name" in node:
            self._types[node["name"]] = node
        return node

    def function(self, parameters: str) -> Any:
        """The function of all lines."""
        source = f"def function({parameters}):\n" + "\n".join(self._lines)
        exec(source, self._scope)  # noqa: S102  # made of the field names of our own schemas only
        return self._scope["function"]


class _Block:
    """What is added inside stands one level deeper."""

    def __init__(self, source: Source) -> None:
        self._source = source

    def __enter__(self) -> None:
        self._source.shift(1)

    def __exit__(self, *_: object) -> None:
        self._source.shift(-1)


def kind_of(node: Any) -> str:
    """The name of a resolved type. Raises NotCompiled for a type that stands in another one's place."""
    kind = node["type"] if isinstance(node, dict) else node
    if not isinstance(kind, str):
        raise NotCompiled
    return kind


def null_and_other(node: list[Any]) -> tuple[int, Any]:
    """Of a union of null and one type: the place of null, and the type. Raises NotCompiled for other unions."""
    if len(node) != 2 or "null" not in node:  # noqa: PLR2004 - a type or null
        raise NotCompiled
    place = node.index("null")
    return place, node[1 - place]


def other_than_none(held: Any) -> Any:
    """Of a declared `Type | None` the type."""
    if get_origin(held) is not UnionType:
        return None
    return next(member for member in get_args(held) if member is not NoneType)


def item_of(held: Any) -> Any:
    """Of a declared `tuple[Item, ...]` the type of its items; None where a list is held."""
    return get_args(held)[0] if get_origin(held) is tuple else None


def fields_of(held: Any) -> dict[str, Any] | None:
    """The declared types of a record's fields by name; None where a dict is held."""
    if not is_dataclass(held):
        return None
    hints = get_type_hints(held)
    return {field.name: hints[field.name] for field in fields(held)}


def array_code(held: Any) -> str | None:
    """The numpy code of a declared array; None where bytes are held."""
    return type_codes[array_types[held]] if held in array_types else None
