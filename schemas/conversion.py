"""Dataclasses to Avro values and back, through functions that are compiled once per class.

As `dataclasses` itself does, each class gets straight-line code made from its own field names, so that a
record costs one dict display one way and one slot assignment per field the other way. Only enums, arrays,
tuples and nested records call further functions. Arrays come back as read-only views of the bytes received.

Fields that the writer's schema lacked get the dataclass's own defaults (fastavro's resolution would hand out
raw JSON defaults: text where bytes belong, nested records left empty), at every depth; fields unknown here are left.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, Field, fields, is_dataclass
from enum import StrEnum
from types import NoneType, UnionType
from typing import Any, NamedTuple, get_args, get_origin, get_type_hints

import numpy as np

from schemas.arrays import array_types, type_codes
from schemas.errors import SchemaError

Convert = Callable[[Any], Any]


class Conversion(NamedTuple):
    """Both directions for one type; None where the value stays as it is."""

    to_avro: Convert | None
    from_avro: Convert | None


_unchanged = Conversion(None, None)


def record_conversion(record_type: type[Any]) -> tuple[Convert, Convert]:
    """Functions from a record to a dict of Avro values and from such a dict to the record.

    `record_type` is a slotted dataclass whose fields all have Avro counterparts.
    """
    assert not hasattr(record_type, "__post_init__"), "records are assembled without their __init__"
    hints = get_type_hints(record_type)
    conversions = {field.name: _conversion(hints[field.name], field.name) for field in fields(record_type)}
    defaults = {field.name: _default(field) for field in fields(record_type)}
    return _writing_function(conversions), _reading_function(record_type, conversions, defaults)


def _default(field: Field[Any]) -> Callable[[], Any] | None:
    """What makes the default of an optional field; None for a required one."""
    if field.default is not MISSING:
        return lambda: field.default
    return None if field.default_factory is MISSING else field.default_factory


def _writing_function(conversions: dict[str, Conversion]) -> Convert:
    scope: dict[str, Any] = {}
    items = []
    for name, conversion in conversions.items():
        value = f"record.{name}"
        if conversion.to_avro:
            scope[f"convert_{name}"] = conversion.to_avro
            value = f"convert_{name}({value})"
        items.append(f"{name!r}: {value}")
    return _compiled("record", ["return {" + ", ".join(items) + "}"], scope)


def _reading_function(
    record_type: type[Any],
    conversions: dict[str, Conversion],
    defaults: dict[str, Callable[[], Any] | None],
) -> Convert:
    scope: dict[str, Any] = {"new": object.__new__, "record_type": record_type}
    lines = ["record = new(record_type)"]
    for name, conversion in conversions.items():
        scope[f"set_{name}"] = getattr(record_type, name).__set__
        value = f"values[{name!r}]"
        if conversion.from_avro:
            scope[f"convert_{name}"] = conversion.from_avro
            value = f"convert_{name}({value})"
        if defaults[name]:
            scope[f"default_{name}"] = defaults[name]
            value += f" if {name!r} in values else default_{name}()"
        lines.append(f"set_{name}(record, {value})")
    return _compiled("values", [*lines, "return record"], scope)


def _compiled(parameter: str, lines: list[str], scope: dict[str, Any]) -> Convert:
    source = f"def convert({parameter}):\n" + "".join(f"    {line}\n" for line in lines)
    exec(source, scope)  # noqa: S102  # made of the field names of our own classes only
    convert: Convert = scope["convert"]
    return convert


def _conversion(hint: Any, name: str) -> Conversion:
    """The conversion for a field of type `hint`; `name` is for messages."""
    if hint in array_types:
        return _array(type_codes[array_types[hint]], name)
    origin = get_origin(hint)
    if origin is UnionType:
        return _union([member for member in get_args(hint) if member is not NoneType], name)
    if origin is tuple:
        return _tuple(_conversion(get_args(hint)[0], name))
    if is_dataclass(hint):
        return Conversion(*record_conversion(hint))  # type: ignore[arg-type]  # a class, as fields are
    if isinstance(hint, type) and issubclass(hint, StrEnum):
        return Conversion(None, {member.value: member for member in hint}.__getitem__)
    return _unchanged


def _array(code: str, name: str) -> Conversion:
    dtype = np.dtype(code)

    def to_avro(array: Any) -> bytes:
        if not isinstance(array, np.ndarray) or array.dtype != dtype or array.ndim != 1:
            raise SchemaError(
                f"{name} must be a one-dimensional numpy array of {dtype.name}, not {_described(array)}: "
                "build it with schemas.int32_array, float32_array or uint8_array"
            )
        return array.tobytes()

    def from_avro(data: bytes) -> Any:
        if len(data) % dtype.itemsize:
            raise SchemaError(f"{name} has {len(data)} bytes, not a multiple of {dtype.itemsize}")
        return np.frombuffer(data, dtype)

    return Conversion(to_avro, from_avro)


def _described(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"one of {value.ndim} dimensions of {value.dtype.name}"
    return f"a {type(value).__name__}"


def _tuple(item: Conversion) -> Conversion:
    to_item, from_item = item
    return Conversion(
        (lambda values: [to_item(value) for value in values]) if to_item else list,
        (lambda values: tuple([from_item(value) for value in values])) if from_item else tuple,
    )


def _union(members: list[Any], name: str) -> Conversion:
    """Null and one type, or null and several records (which Avro values carry with their names)."""
    if len(members) > 1:
        return _record_union(members, name)
    to_member, from_member = _conversion(members[0], name)
    return Conversion(_optional(to_member), _optional(from_member))


def _optional(convert: Convert | None) -> Convert | None:
    return (lambda value: None if value is None else convert(value)) if convert else None


def _record_union(members: list[type[Any]], name: str) -> Conversion:
    to_avro = {member: (f"rollog.{member.__name__}", record_conversion(member)[0]) for member in members}
    from_avro = {f"rollog.{member.__name__}": record_conversion(member)[1] for member in members}

    def to_named(record: Any) -> tuple[str, dict[str, Any]] | None:
        if record is None:
            return None
        if type(record) not in to_avro:
            raise SchemaError(f"{name} cannot hold a {type(record).__name__}")
        full_name, convert = to_avro[type(record)]
        return full_name, convert(record)

    def from_named(named: tuple[str, dict[str, Any]] | None) -> Any:
        return None if named is None else from_avro[named[0]](named[1])

    return Conversion(to_named, from_named)
