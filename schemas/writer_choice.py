"""Which schema a record is written with: the oldest release that loses nothing of it.

A run that uses nothing new then writes the bytes that it always wrote, which old readers read. A record loses something
where a release lacks one of its fields, at any depth, and the value is not the field's default, or where it lacks a
symbol of an enum or a branch of a union. Types never change (`schemas.compatibility`), so nothing else can be lost.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from schemas.catalogue import Catalogue, Definition, Schema

Fits = Callable[[Any], bool]
"""Whether a record, or its Avro values, lose nothing under an older schema."""


class OlderWriter(NamedTuple):
    """A released schema that a record may still be written with."""

    schema: Schema
    fits: Fits
    """Of Avro values."""
    record_fits: Fits | None
    """The same of a record; None where only its Avro values can tell."""


def older_writers(catalogue: Catalogue, name: str) -> list[OlderWriter]:
    """The released schemas of a record, oldest first.

    Ends before the first release that is the schema in force, and leaves out releases that lack the record.
    """
    current = catalogue.current[name]
    found: list[OlderWriter] = []
    for _, release in sorted(catalogue.releases.items()):
        schema = release.get(name)
        if schema is None:
            continue
        if schema.fingerprint == current.fingerprint:
            break
        if found and found[-1].schema.fingerprint == schema.fingerprint:
            continue
        fits = _fitting(current.definition, schema.definition, {}, {})
        if fits is None:
            return [*found, OlderWriter(schema, _always, _always)]
        found.append(OlderWriter(schema, fits, _unused_fields(current.definition, schema.definition)))
    return found


def _unused_fields(new: Definition, old: Definition) -> Fits | None:
    """Whether a record leaves the fields at their defaults that a release lacks; None where more can be lost.

    A record that holds such a field in another way than it is declared counts as using it.
    """
    old_names = {field["name"] for field in old["fields"]}
    kept = [field for field in new["fields"] if field["name"] in old_names]
    lacking = [field for field in new["fields"] if field["name"] not in old_names]
    is_nested = any(isinstance(field["default"], dict) or _is_bytes(field) for field in lacking)
    if is_nested or _fitting(new | {"fields": kept}, old, {}, {}) is not None:
        return None
    return _all_equal(attrgetter, {field["name"]: _held(field["default"]) for field in lacking})


def _held(default: Any) -> Any:
    return tuple(default) if isinstance(default, list) else default


def _always(_: Any) -> bool:
    return True


def _fitting(new: Any, old: Any, new_names: dict[str, Any], old_names: dict[str, Any]) -> Fits | None:
    """Whether a value of type `new` fits type `old`; None where every value does."""
    new, old = _named(new, new_names), _named(old, old_names)
    names = (new_names, old_names)
    if isinstance(new, list):
        return _union_fitting(new, old, *names)
    match new["type"] if isinstance(new, dict) else new:
        case "record":
            return _record_fitting(new, old, *names)
        case "enum":
            return _enum_fitting(new, old)
        case "array":
            return _each(list, _fitting(new["items"], old["items"], *names))
        case "map":
            return _each(dict.values, _fitting(new["values"], old["values"], *names))
    return None


def _enum_fitting(new: Definition, old: Definition) -> Fits | None:
    symbols = frozenset(old["symbols"])
    return None if symbols >= frozenset(new["symbols"]) else symbols.__contains__


def _each(items: Callable[[Any], Any], fits: Fits | None) -> Fits | None:
    return None if fits is None else lambda values: all(map(fits, items(values)))


def _named(node: Any, names: dict[str, Any]) -> Any:
    """The definition behind a name that stood before, and the name kept for later."""
    if isinstance(node, str):
        return names.get(node, node)
    if isinstance(node, dict) and "name" in node:
        names[node["name"]] = node
    return node


def _record_fitting(
    new: Definition, old: Definition, new_names: dict[str, Any], old_names: dict[str, Any]
) -> Fits | None:
    old_fields = {field["name"]: field for field in old["fields"]}
    defaults = {field["name"]: _empty(field) for field in new["fields"] if field["name"] not in old_fields}
    inner = []
    for field in new["fields"]:
        if field["name"] in old_fields:
            fits = _fitting(field["type"], old_fields[field["name"]]["type"], new_names, old_names)
            if fits is not None:
                inner.append((field["name"], fits))
    if not defaults and not inner:
        return None

    is_unused = _all_equal(itemgetter, defaults) if defaults else None

    def record_fits(values: Any) -> bool:
        if is_unused is not None and not is_unused(values):
            return False
        for name, fits in inner:  # noqa: SIM110  # a generator for each record costs more than the rest
            if not fits(values[name]):
                return False
        return True

    return record_fits


def _all_equal(getter: Callable[..., Callable[[Any], Any]], expected: dict[str, Any]) -> Fits:
    """Whether what `getter` (of operator) finds under these names is what is expected.

    Asked of every record that is written: one comparison of all fields costs less than one of each.
    """
    found = getter(*expected)
    # Of a single name it gives no tuple.
    wanted = tuple(expected.values()) if len(expected) > 1 else next(iter(expected.values()))
    return lambda values: bool(found(values) == wanted)


def _empty(field: Definition) -> Any:
    """The default of a field as Avro values hold it: JSON writes bytes as text."""
    default = field["default"]
    return default.encode("latin-1") if _is_bytes(field) else default


def _is_bytes(field: Definition) -> bool:
    kind = field["type"]
    return kind == "bytes" or (isinstance(kind, dict) and kind["type"] == "bytes")


def _union_fitting(
    new: list[Any], old: list[Any], new_names: dict[str, Any], old_names: dict[str, Any]
) -> Fits | None:
    """Null and one type, or null and several records, whose values carry their names."""
    members = [member for member in new if member != "null"]
    old_members = [member for member in old if member != "null"]
    if len(members) == 1:
        fits = _fitting(members[0], old_members[0], new_names, old_names)
        return None if fits is None else lambda value: value is None or fits(value)
    old_by_name = {_named(member, old_names)["name"]: member for member in old_members}
    inner: dict[str, Fits | None] = {}
    for member in members:
        name = _named(member, new_names)["name"]
        known = old_by_name.get(name)
        inner[f"rollog.{name}"] = _never if known is None else _fitting(member, known, new_names, old_names)
    if not any(inner.values()):
        return None

    def union_fits(value: Any) -> bool:
        if value is None:
            return True
        name, values = value
        fits = inner[name]
        return fits is None or fits(values)

    return union_fits


def _never(_: Any) -> bool:
    return False
