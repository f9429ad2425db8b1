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
from typing import Any, NamedTuple, TypeVar

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


class _Writer(NamedTuple):
    """One schema that a record may be written with, if it loses nothing under it."""

    schema: Schema
    prefix: bytes
    fits: Fits


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class _Kind:
    """How records of one class are written and read. Writers are the oldest first; every record fits the last."""

    schema: Schema
    record_type: type[Record]
    writers: list[_Writer]
    """Chosen by Avro values."""
    quick: list[_Writer]
    """The same, chosen by the record itself; empty where it does not tell."""
    to_avro: Convert
    from_avro: Convert
    check: Convert | None


_types = {record_type.__name__: record_type for record_type in record_types}


class _Kinds(dict[type[Any], _Kind]):
    """By class, each made on first use: a process reads and writes few of the records."""

    def __init__(self, catalogue: Catalogue, frame: Frame) -> None:
        super().__init__()
        self._catalogue = catalogue
        self._frame = frame

    def __missing__(self, record_type: type[Any]) -> _Kind:
        if record_type not in record_types:
            raise SchemaError(f"a {record_type.__name__} is not a record that travels on a topic")
        kind = self[record_type] = _kind_of(record_type, self._catalogue, self._frame)
        return kind


class Codec:
    """Encodes and decodes every record with one frame."""

    def __init__(self, catalogue: Catalogue, frame: Frame) -> None:
        self._frame = frame
        self._kinds = _Kinds(catalogue, frame)

    def encode(self, record: Record) -> bytes:
        """The framed bytes of `record`. Raises SchemaError, naming what does not fit the schema."""
        kind = self._kinds[type(record)]
        try:
            if kind.check:
                kind.check(record)
            return _written_quickly(kind, record) or _written(kind, record)
        except SchemaError:
            raise
        except _refusals as error:
            raise SchemaError(f"{kind.schema.name} cannot be written: {_reason(error)}") from error

    def decode(self, data: bytes) -> Record:
        """The record in `data`. Raises SchemaError, naming what is wrong with the bytes."""
        writer, start = self._frame.locate(data)
        record_type = _types.get(writer.name)
        if record_type is None:
            raise SchemaError(f"records of type {writer.name} are no longer read")
        kind = self._kinds[record_type]
        try:
            record = _read(data, start, writer, kind)
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
    older = older_writers(catalogue, schema.name)
    quick = [
        _Writer(each.schema, frame.prefix(each.schema), each.record_fits)
        for each in older
        if each.record_fits
    ]
    newest = _Writer(schema, frame.prefix(schema), _always)
    return _Kind(
        schema=schema,
        record_type=record_type,
        writers=[*(_Writer(each.schema, frame.prefix(each.schema), each.fits) for each in older), newest],
        quick=[*quick, newest] if len(quick) == len(older) else [],
        to_avro=to_avro,
        from_avro=from_avro,
        check=checks.get(record_type),
    )


def _always(_: Any) -> bool:
    return True


def _written_quickly(kind: _Kind, record: Record) -> bytes | None:
    """The bytes of an ordinary record; None for whatever else, of which `_written` says whether it is an error."""
    try:
        for schema, prefix, fits in kind.quick:
            if fits(record):
                quick = schema.straight_line(kind.record_type)
                return None if quick is None else quick.write(record, prefix)
    except _refusals:
        pass
    return None


def _written(kind: _Kind, record: Record) -> bytes:
    values = kind.to_avro(record)
    schema, prefix = next((schema, prefix) for schema, prefix, fits in kind.writers if fits(values))
    quick = schema.straight_line(None)
    if quick is not None:
        try:
            return quick.write(values, prefix)
        except _refusals:
            pass  # whether that is an error, fastavro says
    buffer = BytesIO()
    schemaless_writer(buffer, schema.parsed, values)
    return prefix + buffer.getvalue()


def _read(data: bytes, start: int, writer: Schema, kind: _Kind) -> Record:
    quick = writer.straight_line(kind.record_type)
    if quick is not None:
        try:
            record: Record = quick.read(data, start)
        except _refusals:
            pass  # whether that is an error, fastavro says
        else:
            return record
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
    found: Record = kind.from_avro(values)
    return found


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
