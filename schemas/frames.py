"""What stands before the Avro body of a record: how a reader learns which schema wrote it.

`default_frame` is the only place that chooses. The wire format of a schema registry (a zero byte and 4 bytes of schema
id) is turned into this one where records are read and written (`rollog.kernel.registry`): nothing here knows ids.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from schemas.errors import SchemaError

if TYPE_CHECKING:
    from schemas.catalogue import Catalogue, Schema


class Frame(Protocol):
    """Names the writer's schema in the bytes of a record."""

    def prefix(self, schema: Schema) -> bytes:
        """The bytes before a body written with `schema`."""
        ...

    def locate(self, data: bytes) -> tuple[Schema, int]:
        """The schema the body was written with, and where the body begins; SchemaError when unknown."""
        ...


class SingleObjectFrame:
    """Avro single-object encoding: C3 01, then the schema's CRC-64-AVRO fingerprint, little-endian."""

    marker = b"\xc3\x01"
    size = 10
    _num_id_bytes = 5

    def __init__(self, catalogue: Catalogue) -> None:
        self._by_prefix = {
            self.marker + fingerprint: schema for fingerprint, schema in catalogue.by_fingerprint().items()
        }

    def prefix(self, schema: Schema) -> bytes:
        """The ten bytes before a body written with `schema`."""
        return self.marker + schema.fingerprint

    def locate(self, data: bytes) -> tuple[Schema, int]:
        """The schema of the fingerprint in `data`, and where the body begins."""
        schema = self._by_prefix.get(data[: self.size])
        if schema is None:
            raise SchemaError(self._refusal(data))
        return schema, self.size

    def _refusal(self, data: bytes) -> str:
        if data.startswith(b"\x00") and len(data) >= self._num_id_bytes:
            schema_id = int.from_bytes(data[1 : self._num_id_bytes], "big")
            return (
                f"the bytes begin with 00 and the id {schema_id}, as those of writers with a schema registry do: the "
                "registry of the run has no Avro schema of that id, or the run has no registry"
            )
        if len(data) < self.size:
            return f"{len(data)} bytes are too few for a record: its frame alone has {self.size}"
        if not data.startswith(self.marker):
            return (
                f"the bytes begin with {data[:2].hex(' ')}, not with {self.marker.hex(' ')}: "
                "this is not Avro single-object encoding, so rollog did not write it"
            )
        return (
            f"no schema with fingerprint {data[2 : self.size].hex()} is known here: "
            "the record was written by a newer or a foreign program; upgrade the reader first"
        )


def default_frame(catalogue: Catalogue) -> Frame:
    """The frame of every record rollog writes and reads."""
    return SingleObjectFrame(catalogue)
