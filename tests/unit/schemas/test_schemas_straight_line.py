"""Compiled code writes the bytes that fastavro writes, and reads nothing that fastavro does not read.

It is held against fastavro twice: on Avro values, and on records through `schemas.conversion`.
"""

from __future__ import annotations

import struct
from contextlib import suppress
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from fastavro import schemaless_reader, schemaless_writer
from hypothesis import given
from hypothesis import strategies as st

from schemas.catalogue import load_catalogue, schema_from
from schemas.conversion import record_conversion
from schemas.frames import SingleObjectFrame
from schemas.ledger import LedgerRecord
from schemas.records import record_types

if TYPE_CHECKING:
    from schemas.catalogue import Schema
    from schemas.straight_line import StraightLine

golden = sorted((Path(__file__).parents[2] / "data" / "golden").glob("*.bin"))
names = [path.name for path in golden if not path.name.startswith("LedgerRecord")]
broken = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, EOFError, struct.error)


types = {record_type.__name__: record_type for record_type in record_types}


def the_parts(name: str, *, of_records: bool = False) -> tuple[Schema, StraightLine, bytes]:
    data = (golden[0].parent / name).read_bytes()
    writer, start = SingleObjectFrame(load_catalogue()).locate(data)
    quick = writer.straight_line(types[writer.name] if of_records else None)
    assert quick is not None
    return writer, quick, data[start:]


def read_by_fastavro(schema: Schema, body: bytes) -> Any:
    buffer = BytesIO(body)
    values = schemaless_reader(buffer, schema.parsed, None)
    if buffer.tell() != len(body):
        raise EOFError
    return values


def written_by_fastavro(schema: Schema, values: Any) -> bytes:
    buffer = BytesIO()
    schemaless_writer(buffer, schema.parsed, values)
    return buffer.getvalue()


def altered_body(body: bytes, data: st.DataObject) -> bytes:
    place = data.draw(st.integers(0, len(body) - 1))
    new = data.draw(st.binary(max_size=3))
    return body[:place] + new + body[place + data.draw(st.integers(0, 3)) :]


@pytest.mark.parametrize("name", names)
def test_golden_bodies_are_read_and_written_as_fastavro_does(name: str) -> None:
    schema, quick, body = the_parts(name)
    values = quick.read(body, 0)
    assert values == read_by_fastavro(schema, body)
    assert quick.write(values, b"frame") == b"frame" + body == b"frame" + written_by_fastavro(schema, values)


@pytest.mark.parametrize("name", names)
def test_golden_records_are_those_that_conversion_makes_of_what_fastavro_reads(name: str) -> None:
    schema, quick, body = the_parts(name, of_records=True)
    to_avro, from_avro = record_conversion(types[schema.name])
    record = quick.read(body, 0)
    assert type(record) is types[schema.name]
    assert record == from_avro(read_by_fastavro(schema, body))
    assert (
        quick.write(record, b"frame")
        == b"frame" + body
        == b"frame" + written_by_fastavro(schema, to_avro(record))
    )


@pytest.mark.parametrize("name", names)
@given(data=st.data())
def test_whatever_is_read_of_altered_bytes_is_what_fastavro_reads(name: str, data: st.DataObject) -> None:
    schema, quick, body = the_parts(name)
    altered = altered_body(body, data)
    # Whatever else it raised would not be given to fastavro.
    with suppress(*broken):
        found = repr(quick.read(altered, 0))
        try:
            expected = repr(read_by_fastavro(schema, altered))
        except broken as error:
            expected = repr(error)
        assert found == expected


@pytest.mark.parametrize("name", names)
@given(data=st.data())
def test_whatever_record_is_read_of_altered_bytes_is_the_one_of_fastavro(
    name: str, data: st.DataObject
) -> None:
    schema, quick, body = the_parts(name, of_records=True)
    altered = altered_body(body, data)
    with suppress(*broken):
        found = repr(quick.read(altered, 0))
        try:
            expected = repr(record_conversion(types[schema.name])[1](read_by_fastavro(schema, altered)))
        except broken as error:
            expected = repr(error)
        assert found == expected


every_type = schema_from(
    {
        "type": "record",
        "name": "Every",
        "namespace": "rollog",
        "fields": [
            {"name": "whole", "type": "long"},
            {"name": "small", "type": "int"},
            {"name": "exact", "type": "double"},
            {"name": "rough", "type": "float"},
            {"name": "is_so", "type": "boolean"},
            {"name": "text", "type": "string"},
            {"name": "raw", "type": "bytes"},
            {"name": "some", "type": ["null", "long"]},
            {"name": "last", "type": ["double", "null"]},
            {"name": "list", "type": {"type": "array", "items": "string"}},
            {"name": "by_name", "type": {"type": "map", "values": {"type": "array", "items": "long"}}},
        ],
    }
)
longs = st.integers(-(2**63), 2**63 - 1)
every_value = st.fixed_dictionaries(
    {
        "whole": longs,
        "small": st.integers(-(2**31), 2**31 - 1),
        "exact": st.floats(allow_nan=False),
        "rough": st.floats(width=32, allow_nan=False),
        "is_so": st.booleans(),
        "text": st.text(),
        "raw": st.binary(),
        "some": st.none() | longs,
        "last": st.none() | st.floats(allow_nan=False),
        "list": st.lists(st.text()),
        "by_name": st.dictionaries(st.text(), st.lists(longs)),
    }
)


@given(values=every_value)
def test_values_of_every_type_come_back_from_the_bytes_that_fastavro_writes(values: dict[str, Any]) -> None:
    quick = every_type.straight_line(None)
    assert quick is not None
    body = quick.write(values, b"")
    assert body == written_by_fastavro(every_type, values)
    assert quick.read(body, 0) == values


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("whole", 2**63),
        ("whole", 1.0),
        ("whole", "1"),
        ("some", True),
        ("some", 1.5),
        ("exact", "x"),
        ("text", b"x"),
        ("raw", "x"),
        ("raw", bytearray(b"x")),
        ("list", ["x", 1]),
        ("by_name", {"x": ["y"]}),
    ],
)
def test_values_of_another_type_are_left_to_fastavro(name: str, value: object) -> None:
    quick = every_type.straight_line(None)
    assert quick is not None
    values = {
        "whole": 1, "small": 1, "exact": 1.0, "rough": 1.0, "is_so": True, "text": "", "raw": b"", "some": None,
        "last": None, "list": [], "by_name": {},
    }  # fmt: skip
    quick.write(values, b"")
    with pytest.raises(broken):
        quick.write(values | {name: value}, b"")


def test_a_schema_with_a_choice_of_records_is_not_compiled() -> None:
    assert load_catalogue().current["LedgerRecord"].straight_line(LedgerRecord) is None
