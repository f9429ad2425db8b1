"""Compiles the function that reads bodies of one schema.

A slice beyond the end is short and says nothing, but the place goes on beyond the end with it: every later look at a
byte fails then, and so does the last one, whether the body fills all that is there.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import MISSING, fields
from functools import cache
from struct import Struct
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from schemas.errors import SchemaError
from schemas.line_source import (
    NotCompiled,
    Source,
    array_code,
    fields_of,
    item_of,
    kind_of,
    null_and_other,
    other_than_none,
)

if TYPE_CHECKING:
    from collections.abc import Iterator


Read = Callable[[bytes, int], Any]
"""From bytes and where the body begins to the record; the body must fill the rest."""

_most_bits = 64
_most_varint_bits = 63


def _long_at(data: bytes, place: int) -> tuple[int, int]:
    """The unsigned number at `place` that has more than one byte, and where it ends."""
    number = data[place] & 0x7F
    bits = 7
    while True:
        place += 1
        byte = data[place]
        number |= (byte & 0x7F) << bits
        if byte < 0x80:  # noqa: PLR2004 - the last byte of a number
            break
        bits += 7
        if bits > _most_varint_bits:
            raise SchemaError("a number of more than ten bytes")
    if number >> _most_bits:
        raise SchemaError("a number of more than 64 bits")
    return number, place + 1


def _signed_at(data: bytes, place: int) -> tuple[int, int]:
    number, place = _long_at(data, place)
    return (number >> 1) ^ -(number & 1), place


def _size_at(data: bytes, place: int) -> tuple[int, int]:
    size, place = _signed_at(data, place)
    if size < 0:
        raise SchemaError("a size below 0")
    return size, place


_past_one_byte = 0x80
_scope = {
    "signed_at": _signed_at,
    "size_at": _size_at,
    "signed": tuple((byte >> 1) ^ -(byte & 1) if byte < _past_one_byte else None for byte in range(256)),
    "sizes": tuple(byte >> 1 if byte < _past_one_byte and not byte & 1 else None for byte in range(256)),
    "double": Struct("<d").unpack_from,
    "float_": Struct("<f").unpack_from,
    "booleans": {0: False, 1: True},
    "new": object.__new__,
    "array_of": np.frombuffer,
}


def compiled_read(definition: Any, record_type: type[Any] | None) -> Read:
    """The function from bytes, and where the body begins, to the record; the body fills the rest. Raises NotCompiled.

    Fields that the schema lacks get the class's own defaults; fields that the class lacks are left.
    """
    source = Source(_scope)
    result = _read(source, definition, record_type)
    source.add(f"it = {result}")
    source.add("if place != len(data): raise EOFError")
    source.add("return it")
    return cast("Read", source.function("data, place"))


def _read(source: Source, node: Any, held: Any) -> str:
    """Adds what leads to a value; the expression it has then, to be evaluated next and once."""
    node = source.resolved(node)
    if isinstance(node, list):
        return _read_optional(source, node, held)
    reader = _readers.get(kind_of(node))
    if reader is None:
        raise NotCompiled
    return reader(source, node, held)


def _read_long(source: Source, _node: Any, _held: Any) -> str:
    return _read_number(source, "signed", "number")


def _read_double(source: Source, _node: Any, _held: Any) -> str:
    source.add("place += 8")
    return "double(data, place - 8)[0]"


def _read_float(source: Source, _node: Any, _held: Any) -> str:
    source.add("place += 4")
    return "float_(data, place - 4)[0]"


def _read_boolean(source: Source, _node: Any, _held: Any) -> str:
    source.add("place += 1")
    return "booleans[data[place - 1]]"


def _read_string(source: Source, _node: Any, _held: Any) -> str:
    return f"{_read_sized(source)}.decode()"


def _read_bytes(source: Source, _node: Any, held: Any) -> str:
    code = array_code(held)
    content = _read_sized(source)
    return f"array_of({content}, {source.constant('dtype', np.dtype(code))})" if code else content


def _read_number(source: Source, table: str, name: str) -> str:
    function = "signed_at" if table == "signed" else "size_at"
    source.add(f"{name} = {table}[data[place]]")
    source.add("place += 1")
    source.add(f"if {name} is None: {name}, place = {function}(data, place - 1)")
    return name


def _read_sized(source: Source) -> str:
    size = _read_number(source, "sizes", "size")
    return f"data[place : (place := place + {size})]"


def _read_enum(source: Source, node: Any, held: Any) -> str:
    symbols = node["symbols"]
    if held is not None:
        if not set(symbols) <= {member.value for member in held}:
            raise NotCompiled
        symbols = [held(symbol) for symbol in symbols]
    number = _read_number(source, "sizes", "number")
    return f"{source.constant('symbols', tuple(symbols))}[{number}]"


def _read_array(source: Source, node: Any, held: Any) -> str:
    items = source.name("items")
    source.add(f"{items} = []")
    with _each_item(source):
        item = _read(source, node["items"], item_of(held))
        source.add(f"{items}.append({item})")
    return items if item_of(held) is None else f"tuple({items})"


def _read_map(source: Source, node: Any, _held: Any) -> str:
    items, key = source.name("items"), source.name("key")
    source.add(f"{items} = {{}}")
    with _each_item(source):
        source.add(f"{key} = {_read(source, 'string', None)}")
        item = _read(source, node["values"], None)
        source.add(f"{items}[{key}] = {item}")
    return items


@contextmanager
def _each_item(source: Source) -> Iterator[None]:
    """What is added inside is done for each item of one block; rollog's writers make no more than one."""
    count = source.name("count")
    _read_number(source, "sizes", count)
    with source.nested(f"if {count}:"):
        with source.nested(f"for _ in range({count}):"):
            yield
        source.add("if data[place]: raise ValueError")
        source.add("place += 1")


def _read_record(source: Source, node: Any, held: Any) -> str:
    record = source.name("record")
    declared = fields_of(held)
    if declared is None:
        source.add(f"{record} = {{}}")
        for field in node["fields"]:
            found = _read(source, field["type"], None)
            source.add(f"{record}[{field['name']!r}] = {found}")
        return record
    source.add(f"{record} = new({source.constant('open', _open_twin(held))})")
    for field in node["fields"]:
        name = field["name"]
        found = _read(source, field["type"], declared.get(name))
        source.add(f"{record}.{name} = {found}" if name in declared else found)
    lacking = declared.keys() - {field["name"] for field in node["fields"]}
    for name in sorted(lacking):
        source.add(f"{record}.{name} = {_default(source, held, name)}")
    source.add(f"{record}.__class__ = {source.constant('class', held)}")
    return record


@cache
def _open_twin(record_type: type[Any]) -> type[Any]:
    """A class whose objects are laid out as those of a frozen one, and take fields by assignment.

    An object becomes one of the frozen class at last, which Python allows for equal slots only. Setting forty fields
    through the descriptors of the frozen class takes four times as long.
    """
    return type(record_type.__name__, record_type.__bases__, {"__slots__": record_type.__slots__})


def _default(source: Source, record_type: type[Any], name: str) -> str:
    """The default of a field that the schema lacks. Raises NotCompiled for a field without one."""
    field = next(field for field in fields(record_type) if field.name == name)
    if field.default is not MISSING:
        return source.constant("default", field.default)
    if field.default_factory is MISSING:
        raise NotCompiled
    return f"{source.constant('make', field.default_factory)}()"


def _read_optional(source: Source, node: list[Any], held: Any) -> str:
    place, member = null_and_other(node)
    value = source.name("value")
    source.add("branch = data[place]")
    source.add("place += 1")
    source.add(f"if branch == {2 * place}: {value} = None")
    with source.nested(f"elif branch == {2 * (1 - place)}:"):
        found = _read(source, member, other_than_none(held))
        source.add(f"{value} = {found}")
    source.add("else: raise ValueError")
    return value


_readers: dict[str, Callable[[Source, Any, Any], str]] = {
    "int": _read_long,
    "long": _read_long,
    "double": _read_double,
    "float": _read_float,
    "boolean": _read_boolean,
    "string": _read_string,
    "bytes": _read_bytes,
    "enum": _read_enum,
    "array": _read_array,
    "map": _read_map,
    "record": _read_record,
}
