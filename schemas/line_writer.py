"""Compiles the function that writes bodies of one schema: a single tuple of parts, which are joined once."""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from typing import Any, cast

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

Write = Callable[[Any, bytes], bytes]
"""From a record, and the bytes that go before it, to all bytes."""

_most_varint_bits = 63


def long_bytes(value: int) -> bytes:
    """Zigzag and base 128, as Avro writes an int or a long. Raises SchemaError for anything else."""
    if type(value) is not int or not -(1 << _most_varint_bits) <= value < 1 << _most_varint_bits:
        raise SchemaError(f"{value!r} is no long")
    rest = (value << 1) ^ (value >> _most_varint_bits)
    found = bytearray()
    while rest > 0x7F:  # noqa: PLR2004 - seven bits a byte
        found.append(rest & 0x7F | 0x80)
        rest >>= 7
    found.append(rest)
    return bytes(found)


_small = tuple(long_bytes(value) for value in range(4096))
"""Most lengths and counts, ready."""


def _refused() -> bytes:
    raise TypeError("not the type of the field")


_scope = {
    "small": _small,
    "long_bytes": long_bytes,
    "double": Struct("<d").pack,
    "float_": Struct("<f").pack,
    "join": b"".join,
    "ndarray": np.ndarray,
    "refused": _refused,
}


def compiled_write(definition: Any, record_type: type[Any] | None) -> Write:
    """The function from a record, and the bytes that go before it, to bytes. Raises NotCompiled."""
    source = Source(_scope)
    parts = _parts(source, definition, record_type, "record")
    source.add(f"return join((prefix, {', '.join(parts)}))")
    return cast("Write", source.function("record, prefix"))


def _parts(source: Source, node: Any, held: Any, value: str) -> list[str]:
    """Expressions of the bytes of a value, to be evaluated in order; `value` is evaluated once."""
    node = source.resolved(node)
    if isinstance(node, list):
        return [_optional_part(source, node, held, value)]
    parts = _writers.get(kind_of(node))
    if parts is None:
        raise NotCompiled
    return parts(source, node, held, value)


def _long_parts(source: Source, _node: Any, _held: Any, value: str) -> list[str]:
    return [_long_part(source, value)]


def _double_parts(_source: Source, _node: Any, _held: Any, value: str) -> list[str]:
    return [f"double({value})"]


def _float_parts(_source: Source, _node: Any, _held: Any, value: str) -> list[str]:
    return [f"float_({value})"]


def _boolean_parts(_source: Source, _node: Any, _held: Any, value: str) -> list[str]:
    return [f"b'\\x01' if {value} else b'\\x00'"]


def _string_parts(source: Source, _node: Any, _held: Any, value: str) -> list[str]:
    return _sized_parts(source, f"{value}.encode()")


def _enum_parts(source: Source, node: Any, _held: Any, value: str) -> list[str]:
    symbols = {symbol: long_bytes(place) for place, symbol in enumerate(node["symbols"])}
    return [f"{source.constant('symbols', symbols)}[{value}]"]


def _long_part(source: Source, value: str) -> str:
    number = source.name("number")
    return f"small[{number}] if 0 <= ({number} := {value}) < {len(_small)} else long_bytes({number})"


def _sized_parts(source: Source, content: str) -> list[str]:
    name = source.name("content")
    return [_long_part(source, f"len({name} := {content})"), name]


def _bytes_parts(source: Source, _node: Any, held: Any, value: str) -> list[str]:
    content = source.name("raw")
    code = array_code(held)
    if code is None:
        return _sized_parts(source, f"{content} if type({content} := {value}) is bytes else refused()")
    dtype = source.constant("dtype", np.dtype(code))
    is_such = f"type({content} := {value}) is ndarray and {content}.dtype == {dtype} and {content}.ndim == 1"
    return _sized_parts(source, f"{content}.tobytes() if {is_such} else refused()")


def _record_parts(source: Source, node: Any, held: Any, value: str) -> list[str]:
    declared = fields_of(held)
    record = source.name("record")
    parts: list[str] = []
    for field in node["fields"]:
        name = field["name"]
        owner = record if parts else f"({record} := {value})"
        if declared is None:
            parts += _parts(source, field["type"], None, f"{owner}[{name!r}]")
        elif name in declared:
            parts += _parts(source, field["type"], declared[name], f"{owner}.{name}")
        else:  # the schema is older than the class, which has dropped the field
            raise NotCompiled
    return parts


def _array_parts(source: Source, node: Any, held: Any, value: str) -> list[str]:
    item = source.name("item")
    parts = _parts(source, node["items"], item_of(held), item)
    kind = "list" if item_of(held) is None else "tuple"
    return [_block_part(source, value, parts, kind, f"{item} in {{items}}")]


def _map_parts(source: Source, node: Any, _held: Any, value: str) -> list[str]:
    key, item = source.name("key"), source.name("item")
    parts = [*_parts(source, "string", None, key), *_parts(source, node["values"], None, item)]
    return [_block_part(source, value, parts, "dict", f"{key}, {item} in {{items}}.items()")]


def _block_part(source: Source, value: str, parts: list[str], kind: str, each: str) -> str:
    """All items of a `kind` in one block, and the end of blocks."""
    items = source.name("items")
    count = _long_part(source, f"len({items})")
    block = f"join(({count}, *[join(({', '.join(parts)},)) for {each.format(items=items)}], b'\\x00'))"
    return f"({block} if {items} else b'\\x00') if type({items} := {value}) is {kind} else refused()"


def _optional_part(source: Source, node: list[Any], held: Any, value: str) -> str:
    place, member = null_and_other(node)
    it = source.name("held")
    parts = ", ".join(_parts(source, member, other_than_none(held), it))
    some = f"join(({_small[1 - place]!r}, {parts}))"
    kind = source.resolved(member)
    numbers = {"int": "int", "long": "int", "double": "float", "float": "float"}
    exact = numbers.get(kind if isinstance(kind, str) else "")
    if exact is not None:  # here fastavro is strict about types
        some = f"{some} if type({it}) is {exact} else refused()"
    return f"{_small[place]!r} if ({it} := {value}) is None else ({some})"


_writers: dict[str, Callable[[Source, Any, Any, str], list[str]]] = {
    "int": _long_parts,
    "long": _long_parts,
    "double": _double_parts,
    "float": _float_parts,
    "boolean": _boolean_parts,
    "string": _string_parts,
    "bytes": _bytes_parts,
    "enum": _enum_parts,
    "array": _array_parts,
    "map": _map_parts,
    "record": _record_parts,
}
