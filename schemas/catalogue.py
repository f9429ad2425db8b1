"""The Avro schemas in force and those of every release, read once from the package's own files."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any

from fastavro.schema import fingerprint, parse_schema, to_parsing_canonical_form

from schemas.straight_line import StraightLine, straight_line

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

Definition = dict[str, Any]
"""An Avro schema as JSON holds it."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Schema:
    """One schema, ready for use.

    `fingerprint` is the CRC-64-AVRO of the parsing canonical form as 8 little-endian bytes, `parsed` what
    fastavro wants to be given. `names_records` tells whether a union of several records occurs, whose values
    must carry the record's name.
    """

    name: str
    definition: Definition
    parsed: Any
    fingerprint: bytes
    names_records: bool

    def straight_line(self, record_type: type[Any] | None) -> StraightLine | None:
        """Quick functions for its bodies, compiled on first use; None where fastavro alone serves it.

        Records are of `record_type`, or dicts of Avro values without one.
        """
        return _straight_line(self, record_type)  # type: ignore[arg-type]  # classes are hashable


@cache
def _straight_line(schema: Schema, record_type: type[Any] | None) -> StraightLine | None:
    return straight_line(schema.definition, record_type)


@dataclass(frozen=True, slots=True, eq=False)
class Catalogue:
    """All schemas that records may be written with."""

    current: dict[str, Schema]
    releases: dict[int, dict[str, Schema]]

    def by_fingerprint(self) -> dict[bytes, Schema]:
        """Writer schemas by fingerprint; a current schema goes before a released one that equals it."""
        found = {
            schema.fingerprint: schema for release in self.releases.values() for schema in release.values()
        }
        return found | {schema.fingerprint: schema for schema in self.current.values()}


def schema_from(definition: Definition) -> Schema:
    """Parse one definition."""
    digits: str = fingerprint(to_parsing_canonical_form(definition), "CRC-64-AVRO")
    return Schema(
        name=definition["name"],
        definition=definition,
        parsed=parse_schema(definition),
        fingerprint=bytes.fromhex(digits),
        names_records=_has_record_union(definition),
    )


def _has_record_union(node: Any) -> bool:
    if isinstance(node, dict):
        return any(_has_record_union(field["type"]) for field in node.get("fields", ())) or any(
            _has_record_union(node[key]) for key in ("items", "values") if key in node
        )
    if isinstance(node, list):
        return sum(member != "null" for member in node) > 1 or any(map(_has_record_union, node))
    return False


def load_folder(folder: Traversable) -> dict[str, Schema]:
    """The schemas of the `.avsc` files of a folder, by record name."""
    files = (file for file in folder.iterdir() if file.name.endswith(".avsc"))
    schemas = (schema_from(json.loads(file.read_text("utf-8"))) for file in files)
    return {schema.name: schema for schema in schemas}


@cache
def load_catalogue() -> Catalogue:
    """The schemas of this installation."""
    package = resources.files("schemas")
    releases = sorted(int(folder.name) for folder in (package / "released").iterdir() if folder.is_dir())
    return Catalogue(
        current=load_folder(package / "avsc"),
        releases={release: load_folder(package / "released" / str(release)) for release in releases},
    )
