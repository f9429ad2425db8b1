"""The Avro schemas and the dataclasses say the same, and every part of a schema is explained."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from enum import StrEnum
from importlib import resources
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Any, get_args, get_origin, get_type_hints

import numpy as np
import pytest

import schemas
from schemas import Record, array_types, record_types
from schemas.catalogue import load_catalogue, schema_from

if TYPE_CHECKING:
    from collections.abc import Iterator

primitives = {str: "string", int: "long", float: "double", bool: "boolean", bytes: "bytes"}


def definition_of(record_type: type[Record]) -> dict[str, Any]:
    text = (resources.files("schemas") / "avsc" / f"{record_type.__name__}.avsc").read_text("utf-8")
    definition: dict[str, Any] = json.loads(text)
    return definition


def named_types(node: Any) -> Iterator[dict[str, Any]]:
    if isinstance(node, list):
        for member in node:
            yield from named_types(member)
    elif isinstance(node, dict):
        if "name" in node:
            yield node
        for key in ("type", "items", "values"):
            yield from named_types(node.get(key))
        for field in node.get("fields", ()):
            yield from named_types(field["type"])


def avro_type(hint: Any) -> Any:
    """The type a schema should give a field; named types by name."""
    if hint in array_types:
        return {"type": "bytes", "array": array_types[hint]}
    if hint in primitives:
        return primitives[hint]
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is UnionType:
        members = [avro_type(member) for member in arguments if member is not NoneType]
        return ["null", *members]
    if origin is tuple:
        return {"type": "array", "items": avro_type(arguments[0])}
    if origin is dict:
        return {"type": "map", "values": avro_type(arguments[1])}
    return hint.__name__


def by_name(node: Any) -> Any:
    """A schema's type with every named type replaced by its name."""
    if isinstance(node, list):
        return [by_name(member) for member in node]
    if isinstance(node, dict):
        if "name" in node:
            return node["name"]
        return {key: by_name(value) for key, value in node.items()}
    return node


def json_value(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        return {field.name: json_value(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, np.ndarray):
        return value.tobytes().decode("latin-1")
    return list(value) if isinstance(value, tuple) else value


def default_of(field: dataclasses.Field[Any]) -> dict[str, Any]:
    if field.default is not dataclasses.MISSING:
        return {"default": json_value(field.default)}
    if field.default_factory is not dataclasses.MISSING:
        return {"default": json_value(field.default_factory())}
    return {}


@pytest.mark.parametrize("record_type", record_types)
def test_a_schema_has_the_fields_of_its_dataclasses_in_order_with_equal_defaults(
    record_type: type[Record],
) -> None:
    for named in named_types(definition_of(record_type)):
        of_ours = getattr(schemas, named["name"])
        if issubclass(of_ours, StrEnum):
            assert named["symbols"] == [member.value for member in of_ours]
            continue
        hints = get_type_hints(of_ours)
        found = [
            {"name": field["name"], "type": by_name(field["type"])}
            | ({"default": field["default"]} if "default" in field else {})
            for field in named["fields"]
        ]
        assert found == [
            {"name": field.name, "type": avro_type(hints[field.name])} | default_of(field)
            for field in dataclasses.fields(of_ours)
        ]


@pytest.mark.parametrize("record_type", record_types)
def test_every_record_enum_and_field_is_explained(record_type: type[Record]) -> None:
    for named in named_types(definition_of(record_type)):
        assert named["doc"].endswith("."), named["name"]
        for field in named.get("fields", ()):
            assert field["doc"].endswith("."), f"{named['name']}.{field['name']}"


@pytest.mark.parametrize("record_type", record_types)
def test_fields_named_after_a_unit_say_it(record_type: type[Record]) -> None:
    units = {"_seconds": "econds", "_bytes": "bytes", "_tokens": "tokens"}
    for named in named_types(definition_of(record_type)):
        for field in named.get("fields", ()):
            for ending, word in units.items():
                if field["name"].endswith(ending):
                    assert word in field["doc"], field["name"]


def test_all_records_live_in_one_namespace_and_no_schema_is_without_a_record() -> None:
    definitions = [definition_of(record_type) for record_type in record_types]
    assert {definition["namespace"] for definition in definitions} == {"rollog"}
    assert set(load_catalogue().current) == {record_type.__name__ for record_type in record_types}


def test_a_type_used_in_several_files_is_the_same_in_each() -> None:
    seen: dict[str, Any] = {}
    for record_type in record_types:
        for named in named_types(definition_of(record_type)):
            assert seen.setdefault(named["name"], named) == named


def test_fingerprints_are_those_of_the_avro_specification() -> None:
    # Published with the specification's reference implementation, there as big-endian numbers.
    published = {'"int"': 0x7275D51A3F395C8F, '"string"': 0x8F014872634503C7}
    for text, number in published.items():
        assert schema_from({"name": "x", "type": json.loads(text)}).fingerprint == number.to_bytes(
            8, "little"
        )


def test_words_in_a_schema_do_not_change_its_fingerprint() -> None:
    definition = definition_of(schemas.Cancel)
    assert (
        schema_from({**definition, "doc": "Other words."}).fingerprint == schema_from(definition).fingerprint
    )


def test_the_records_can_be_imported_without_heavy_libraries() -> None:
    code = (
        "import sys, schemas, schemas.codec, schemas.headers\n"
        "heavy = {'torch', 'kafka', 'vllm', 'transformers', 'deepspeed', 'rollog'} & set(sys.modules)\n"
        "sys.exit(', '.join(heavy) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
