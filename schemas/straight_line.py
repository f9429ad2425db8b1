"""Records written and read by straight-line code, compiled once per schema.

fastavro walks the schema for every value, and wants dicts: for a record of forty fields that is most of what a sample
costs. Here each schema gets two functions made from its own field names, which turn records of one class into the same
bytes, and back (`schemas.line_writer`, `schemas.line_reader`).

They know only what rollog's own writer makes: whatever else comes, a value of another type, a length that reaches
beyond the end, an array in several blocks, raises some error, and the caller goes by `schemas.conversion` and fastavro,
which decide. So no word about what is refused, and nothing of what is accepted, depends on this module.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from schemas.line_reader import Read, compiled_read
from schemas.line_source import NotCompiled
from schemas.line_writer import Write, compiled_write


class StraightLine(NamedTuple):
    """Both directions of one schema."""

    write: Write
    read: Read


def straight_line(definition: Any, record_type: type[Any] | None = None) -> StraightLine | None:
    """The functions of a schema; None where it holds something that only fastavro is asked for.

    Without a class, records are dicts of Avro values.
    """
    try:
        return StraightLine(compiled_write(definition, record_type), compiled_read(definition, record_type))
    except NotCompiled:
        return None
