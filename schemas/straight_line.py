"""Avro bodies written and read by straight-line code, compiled once per schema.

fastavro walks the schema for every value; for a record of forty fields that is half of what a sample costs. Here each
schema gets two functions made from its own field names, which write the same bytes and read the same values.

They know only what rollog's own writer makes: whatever else comes, a value of another type, a length that reaches
beyond the end, an array in several blocks, raises some error, and the caller gives value or bytes to fastavro, which
decides. So no word about what is refused, and nothing of what is accepted, depends on this module.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from typing import Any, NamedTuple, cast

from schemas.errors import SchemaError

Write = Callable[[Any], bytes]
"""From Avro values to the bytes of a body."""
Read = Callable[[bytes, int], Any]
"""From bytes and where the body begins to Avro values; the body must fill the rest."""

_doubles = Struct("<d")
_floats = Struct("<f")
_most_bits = 64
_most_varint_bits = 63


class StraightLine(NamedTuple):
    """Both directions of one schema."""

    write: Write
    read: Read


def straight_line(definition: Any) -> StraightLine | None:
    """The functions of a schema; None where it holds something that only fastavro is asked for."""
    try:
        return StraightLine(_compiled_write(definition), _compiled_read(definition))
    except _NotCompiled:
        return None


class _NotCompiled(Exception):
    """A schema holds a type that is not compiled."""


class _Source:
    """Lines of a function under way, at a depth, with names that no other value of it has."""

    def __init__(self, names: dict[str, Any]) -> None:
        self.lines: list[str] = []
        self.scope: dict[str, Any] = {}
        self._types = names
        self._depth = 1
        self._num_names = 0

    def add(self, line: str) -> None:
        self.lines.append("    " * self._depth + line)

    def name(self, prefix: str) -> str:
        self._num_names += 1
        return f"{prefix}{self._num_names}"

    def constant(self, prefix: str, value: Any) -> str:
        name = self.name(prefix)
        self.scope[name] = value
        return name

    def nested(self, head: str) -> _Block:
        self.add(head)
        return _Block(self)

    def shift(self, by: int) -> None:
        self._depth += by

    def resolved(self, node: Any) -> Any:
        """A type with its definition: a name stands for what was defined under it before."""
        if isinstance(node, str):
            node = self._types.get(node, node)
        if isinstance(node, dict) and "name" in node:
            self._types[node["name"]] = node
        return node

    def function(self, parameters: str) -> Any:
        source = f"def function({parameters}):\n" + "\n".join(self.lines)
        exec(source, self.scope)  # noqa: S102  # made of the field names of our own schemas only
        return self.scope["function"]


class _Block:
    """What is added inside stands one level deeper."""

    def __init__(self, source: _Source) -> None:
        self._source = source

    def __enter__(self) -> None:
        self._source.shift(1)

    def __exit__(self, *_: object) -> None:
        self._source.shift(-1)


def _kind(node: Any) -> str:
    kind = node["type"] if isinstance(node, dict) else node
    if not isinstance(kind, str):
        raise _NotCompiled
    return kind


def _optional(node: list[Any]) -> tuple[int, Any]:
    """Of a union of null and one type: the place of null, and the type."""
    if len(node) != 2 or "null" not in node:  # noqa: PLR2004 - a type or null
        raise _NotCompiled
    place = node.index("null")
    return place, node[1 - place]


def _long_bytes(value: int) -> bytes:
    """Zigzag and base 128, as Avro writes an int or a long."""
    if type(value) is not int or not -(1 << _most_varint_bits) <= value < 1 << _most_varint_bits:
        raise SchemaError(f"{value!r} is no long")
    rest = (value << 1) ^ (value >> _most_varint_bits)
    found = bytearray()
    while rest > 0x7F:  # noqa: PLR2004 - seven bits a byte
        found.append(rest & 0x7F | 0x80)
        rest >>= 7
    found.append(rest)
    return bytes(found)


_small = tuple(_long_bytes(value) for value in range(4096))
"""Most lengths and counts, ready."""


_fixed = {
    "double": "double({})",
    "float": "float_({})",
    "boolean": "b'\\x01' if {} else b'\\x00'",
}
"""The bytes of values that have a fixed number of them."""


def _compiled_write(definition: Any) -> Write:
    source = _Source({})
    source.scope |= {
        "small": _small,
        "long_bytes": _long_bytes,
        "double": _doubles.pack,
        "float_": _floats.pack,
    }
    source.add("parts = []")
    source.add("add = parts.append")
    _write(source, definition, "values")
    source.add("return b''.join(parts)")
    return cast("Write", source.function("values"))


def _write(source: _Source, node: Any, value: str) -> None:
    node = source.resolved(node)
    if isinstance(node, list):
        _write_optional(source, node, value)
        return
    match _kind(node):
        case "int" | "long":
            _write_long(source, value)
        case "double" | "float" | "boolean" as kind:
            source.add(f"add({_fixed[kind].format(value)})")
        case "string":
            encoded = source.name("text")
            source.add(f"{encoded} = {value}.encode()")
            _write_sized(source, encoded)
        case "bytes":
            content = source.name("content")
            source.add(f"{content} = {value}")
            source.add(f"if type({content}) is not bytes: raise TypeError")
            _write_sized(source, content)
        case "enum":
            symbols = {symbol: _long_bytes(place) for place, symbol in enumerate(node["symbols"])}
            source.add(f"add({source.constant('symbols', symbols)}[{value}])")
        case "array" | "map" as kind:
            _write_blocks(source, node, kind, value)
        case "record":
            _write_record(source, node, value)
        case _:
            raise _NotCompiled


def _write_long(source: _Source, value: str) -> None:
    number = source.name("number")
    source.add(f"{number} = {value}")
    source.add(f"add(small[{number}] if 0 <= {number} < {len(_small)} else long_bytes({number}))")


def _write_sized(source: _Source, content: str) -> None:
    _write_long(source, f"len({content})")
    source.add(f"add({content})")


def _write_blocks(source: _Source, node: Any, kind: str, value: str) -> None:
    items, item = source.name("items"), source.name("item")
    source.add(f"{items} = {value}")
    with source.nested(f"if {items}:"):
        _write_long(source, f"len({items})")
        if kind == "array":
            with source.nested(f"for {item} in {items}:"):
                _write(source, node["items"], item)
        else:
            key = source.name("key")
            with source.nested(f"for {key}, {item} in {items}.items():"):
                _write(source, "string", key)
                _write(source, node["values"], item)
    source.add("add(b'\\x00')")


def _write_record(source: _Source, node: Any, value: str) -> None:
    record = source.name("record")
    source.add(f"{record} = {value}")
    for field in node["fields"]:
        _write(source, field["type"], f"{record}[{field['name']!r}]")


def _write_optional(source: _Source, node: list[Any], value: str) -> None:
    place, member = _optional(node)
    held = source.name("held")
    source.add(f"{held} = {value}")
    source.add(f"if {held} is None: add({_small[place]!r})")
    with source.nested("else:"):
        kind = source.resolved(member)
        numbers = {"int": "int", "long": "int", "double": "float", "float": "float"}
        exact = numbers.get(kind if isinstance(kind, str) else "")
        if exact is not None:  # here fastavro is strict about types
            source.add(f"if type({held}) is not {exact}: raise TypeError")
        source.add(f"add({_small[1 - place]!r})")
        _write(source, member, held)


def _read_long(data: bytes, place: int) -> tuple[int, int]:
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


def _compiled_read(definition: Any) -> Read:
    source = _Source({})
    source.scope |= {"read_long": _read_long, "double": _doubles.unpack_from, "float_": _floats.unpack_from}
    source.add("size = len(data)")
    result = _read(source, definition)
    source.add("if place != size: raise EOFError")
    source.add(f"return {result}")
    return cast("Read", source.function("data, place"))


def _read(source: _Source, node: Any) -> str:
    """Adds what reads one value; the name it has then."""
    node = source.resolved(node)
    if isinstance(node, list):
        return _read_optional(source, node)
    value = source.name("value")
    match _kind(node):
        case "int" | "long":
            _read_unsigned(source, value)
            source.add(f"{value} = ({value} >> 1) ^ -({value} & 1)")
        case "double" | "float" as kind:
            unpack, size = ("double", 8) if kind == "double" else ("float_", 4)
            source.add(f"({value},) = {unpack}(data, place)")
            source.add(f"place += {size}")
        case "boolean":
            source.add(f"{value} = {source.constant('booleans', {0: False, 1: True})}[data[place]]")
            source.add("place += 1")
        case "string":
            _read_sized(source, value)
            source.add(f"{value} = {value}.decode()")
        case "bytes":
            _read_sized(source, value)
        case "enum":
            _read_count(source, value)
            source.add(f"{value} = {source.constant('symbols', tuple(node['symbols']))}[{value}]")
        case "array" | "map" as kind:
            _read_blocks(source, node, kind, value)
        case "record":
            fields = {field["name"]: _read(source, field["type"]) for field in node["fields"]}
            items = ", ".join(f"{name!r}: {found}" for name, found in fields.items())
            source.add(f"{value} = {{{items}}}")
        case _:
            raise _NotCompiled
    return value


def _read_unsigned(source: _Source, value: str) -> None:
    source.add(f"{value} = data[place]")
    source.add(f"if {value} < 128: place += 1")
    source.add(f"else: {value}, place = read_long(data, place)")


def _read_count(source: _Source, value: str) -> None:
    """A number that is not negative."""
    _read_unsigned(source, value)
    source.add(f"if {value} & 1: raise ValueError")
    source.add(f"{value} >>= 1")


def _read_sized(source: _Source, value: str) -> None:
    _read_count(source, value)
    source.add(f"end = place + {value}")
    source.add("if end > size: raise EOFError")
    source.add(f"{value} = data[place:end]")
    source.add("place = end")


def _read_blocks(source: _Source, node: Any, kind: str, value: str) -> None:
    count = source.name("count")
    source.add(f"{value} = {'[]' if kind == 'array' else '{}'}")
    _read_count(source, count)
    with source.nested(f"if {count}:"):
        with source.nested(f"for _ in range({count}):"):
            if kind == "array":
                source.add(f"{value}.append({_read(source, node['items'])})")
            else:
                key = _read(source, "string")
                source.add(f"{value}[{key}] = {_read(source, node['values'])}")
        source.add("if data[place]: raise ValueError")
        source.add("place += 1")


def _read_optional(source: _Source, node: list[Any]) -> str:
    place, member = _optional(node)
    value = source.name("value")
    source.add("branch = data[place]")
    source.add("place += 1")
    source.add(f"if branch == {2 * place}: {value} = None")
    with source.nested(f"elif branch == {2 * (1 - place)}:"):
        source.add(f"{value} = {_read(source, member)}")
    source.add("else: raise ValueError")
    return value
