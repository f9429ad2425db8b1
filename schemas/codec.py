"""Records to bytes and back.

`encode` and `decode` are total: what they cannot turn into a valid record or valid bytes raises SchemaError,
whatever the bytes hold. Schemas are parsed once, on first use. A record written with a released schema is
read with that one, and fields it lacks get their defaults; a record is written with the oldest release that holds
all of it (`schemas.writer_choice`). Arrays of a decoded record are read-only views.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from io import BytesIO
from struct import error as StructError  # noqa: N812 - it is a class
from typing import Any, TypeVar

from fastavro import schemaless_reader, schemaless_writer

from schemas.catalogue import Catalogue, Schema, load_catalogue
from schemas.conversion import Convert, record_conversion
from schemas.errors import SchemaError
from schemas.frames import Frame, default_frame
from schemas.records import Record, record_types
from schemas.validation import checks
from schemas.writer_choice import Fits, older_writers

__all__ = ["Codec", "SchemaError", "decode", "decode_as", "default_codec", "encode"]

RecordT = TypeVar("RecordT", bound=Record)

_refusals = (
    ValueError,
    TypeError,
    LookupError,
    AttributeError,
    ArithmeticError,
    EOFError,
    StructError,
    MemoryError,
    RecursionError,
)
"""Everything fastavro, numpy, the dataclasses and compiled code raise on values or bytes that do not fit."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class _Kind:
    """How records of one class are written and read."""

    schema: Schema
    prefix: bytes
    older: list[tuple[Schema, bytes, Fits]]
    to_avro: Convert
    from_avro: Convert
    check: Convert | None


class Codec:
    """Encodes and decodes every record with one frame."""

    def __init__(self, catalogue: Catalogue, frame: Frame) -> None:
        self._frame = frame
        self._kinds = {cls: _kind_of(cls, catalogue, frame) for cls in record_types}
        self._by_name = {cls.__name__: kind for cls, kind in self._kinds.items()}

    def encode(self, record: Record) -> bytes:
        """The framed bytes of `record`. Raises SchemaError, naming what does not fit the schema."""
        kind = self._kinds.get(type(record))
        if kind is None:
            raise SchemaError(f"a {type(record).__name__} is not a record that travels on a topic")
        try:
            if kind.check:
                kind.check(record)
            values = kind.to_avro(record)
            schema, prefix = _writer_of(kind, values)
            return prefix + _write(schema, values)
        except SchemaError:
            raise
        except _refusals as error:
            raise SchemaError(f"{kind.schema.name} cannot be written: {_reason(error)}") from error

    def decode(self, data: bytes) -> Record:
        """The record in `data`. Raises SchemaError, naming what is wrong with the bytes."""
        writer, start = self._frame.locate(data)
        kind = self._by_name.get(writer.name)
        if kind is None:
            raise SchemaError(f"records of type {writer.name} are no longer read")
        try:
            values = _read(data, start, writer)
            record: Record = kind.from_avro(values)
            if kind.check:
                kind.check(record)
        except SchemaError as error:
            raise SchemaError(f"{writer.name} of {len(data)} bytes: {error}") from error
        except _refusals as error:
            raise SchemaError(
                f"{writer.name} of {len(data)} bytes cannot be read: {_reason(error)}"
            ) from error
        return record

    def decode_as(self, record_type: type[RecordT], data: bytes) -> RecordT:
        """The record in `data`, which must be a `record_type`. Raises SchemaError otherwise."""
        record = self.decode(data)
        if not isinstance(record, record_type):
            raise SchemaError(f"expected a {record_type.__name__}, found a {type(record).__name__}")
        return record


def _kind_of(record_type: type[Record], catalogue: Catalogue, frame: Frame) -> _Kind:
    schema = catalogue.current[record_type.__name__]
    to_avro, from_avro = record_conversion(record_type)
    return _Kind(
        schema=schema,
        prefix=frame.prefix(schema),
        older=[(older, frame.prefix(older), fits) for older, fits in older_writers(catalogue, schema.name)],
        to_avro=to_avro,
        from_avro=from_avro,
        check=checks.get(record_type),
    )


def _writer_of(kind: _Kind, values: Any) -> tuple[Schema, bytes]:
    for schema, prefix, fits in kind.older:
        if fits(values):
            return schema, prefix
    return kind.schema, kind.prefix


def _write(writer: Schema, values: Any) -> bytes:
    quick = writer.straight_line
    if quick is not None:
        try:
            return quick.write(values)
        except _refusals:
            pass  # whether that is an error, fastavro says
    buffer = BytesIO()
    schemaless_writer(buffer, writer.parsed, values)
    return buffer.getvalue()


def _read(data: bytes, start: int, writer: Schema) -> Any:
    quick = writer.straight_line
    if quick is not None:
        try:
            return quick.read(data, start)
        except _refusals:
            pass  # whether that is an error, fastavro says
    buffer = BytesIO(data)
    buffer.seek(start)
    values = schemaless_reader(
        buffer,
        writer.parsed,
        return_record_name=writer.names_records,
        return_record_name_override=True,
    )
    rest = len(data) - buffer.tell()
    if rest:
        raise SchemaError(f"{rest} bytes are left after the record")
    return values


def _reason(error: BaseException) -> str:
    if isinstance(error, EOFError):
        return "the bytes end in the middle of a field"
    return f"{type(error).__name__}: {error}"


@cache
def default_codec() -> Codec:
    """The codec of this installation, made on first use."""
    catalogue = load_catalogue()
    return Codec(catalogue, default_frame(catalogue))


def encode(record: Record) -> bytes:
    """The framed bytes of `record`. Raises SchemaError, naming what does not fit the schema."""
    return default_codec().encode(record)


def decode(data: bytes) -> Record:
    """The record in `data`. Raises SchemaError, naming what is wrong with the bytes."""
    return default_codec().decode(data)


def decode_as(record_type: type[RecordT], data: bytes) -> RecordT:
    """The record in `data`, which must be a `record_type`. Raises SchemaError otherwise."""
    return default_codec().decode_as(record_type, data)
