"""The schema reference: every record, its fields with type, default and meaning, as the `.avsc` files declare them.

    python -m schemas.reference > docs/reference/schemas.md

writes the page anew; a test compares it with the code, and runs the example that stands in it.
"""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

from schemas.catalogue import load_catalogue
from schemas.records import record_types

if TYPE_CHECKING:
    from collections.abc import Iterator

    from schemas.catalogue import Definition

_introduction = """\
# Schemas

This page is written by `python -m schemas.reference > docs/reference/schemas.md` from the files in `schemas/avsc/`;
change those, not the page. Which topic holds which record is told by [topics](topics.md), what a record means by
[protocol](../protocol.md).

A record on a topic is Avro in single-object encoding: the two bytes `C3 01`, the CRC-64-AVRO fingerprint of the
writer's schema (8 bytes, little-endian), the body; in a run with `broker.framing = "registry"` it has a
[registry's id](../schema-registry.md#on-the-log) in their place. The schemas of every release stay in
`schemas/released/`, so that old records can be read, and a record is written with the oldest of them that holds all of
it: a partition may hold records of several schemas. A new field always has a default;
`python -m schemas.compatibility` checks it, as part of `make check`.

Fields of type `bytes (int32)`, `bytes (float32)` and `bytes (uint8)` are arrays of numbers, little-endian, without a
header. Weights are never in a record: a [WeightVersion](#weightversion) names their file.

## Reading without rollog

Nothing of rollog is needed to read a run: the `.avsc` files and any Avro library do. This is Python with fastavro
alone. It reads an archive (`rollog export`), which is a zip file with one Avro container file for each partition; the
values in it are the bytes of the topic.

```python
import io
import json
import struct
import zipfile
from pathlib import Path

from fastavro import parse_schema, reader, schemaless_reader
from fastavro.schema import fingerprint, to_parsing_canonical_form

known = {}  # the ten bytes before a body, and the schema that wrote it
for path in Path("schemas").rglob("*.avsc"):
    definition = json.loads(path.read_text())
    digits = fingerprint(to_parsing_canonical_form(definition), "CRC-64-AVRO")
    known[b"\\xc3\\x01" + bytes.fromhex(digits)] = parse_schema(definition)


def decode(value):
    return schemaless_reader(io.BytesIO(value[10:]), known[value[:10]], None)


with zipfile.ZipFile("tests/data/recorded/run.zip") as archive:
    for name in sorted(archive.namelist()):
        if ".samples/" not in name:
            continue
        with archive.open(name) as member:
            for record in reader(member):
                sample = decode(record["value"])
                token_ids = struct.unpack(f"<{len(sample['token_ids']) // 4}i", sample["token_ids"])
                versions = [segment["version"] for segment in sample["segments"]]
                print(
                    record["offset"],
                    sample["sample_id"],
                    sample["reward"],
                    versions,
                    len(token_ids),
                    "tokens",
                )
```

Run in the root of the repository it prints a line for each sample, 40 in all. The first is

```text
0 g0.r2.a0 1.0 [0] 1 tokens
```

From a broker the values come from any Kafka client; the rest is the same. With kafka-python:

```python
from kafka import KafkaConsumer

consumer = KafkaConsumer(
    "rollog.first.samples",
    bootstrap_servers="localhost:9092",
    auto_offset_reset="earliest",
    isolation_level="read_committed",
    consumer_timeout_ms=5000,
)
for message in consumer:
    print(message.partition, message.offset, decode(message.value)["sample_id"])
```

`isolation_level="read_committed"` matters: ledger, weights notices, control and dead letters are written in
transactions, and a record of a transaction that was aborted never happened. A `null` value on `workers` is a tombstone.
Copy `schemas/avsc/` and `schemas/released/` to where you read; the installed package `schemas` has them, too.
"""

_array_key = "array"
_primitives = frozenset({"null", "boolean", "int", "long", "float", "double", "bytes", "string"})


def schema_reference() -> str:
    """The page as Markdown."""
    current = load_catalogue().current
    records = [_record(current[name].definition) for name in sorted(each.__name__ for each in record_types)]
    return "\n".join([_introduction, *records])


def _record(definition: Definition) -> str:
    """One record as a section, the named types inside it as sections below."""
    parts = [f"## {definition['name']}", "", definition["doc"], "", *_fields(definition)]
    for inner in _named_types(definition):
        name = f"{inner['name']} of {definition['name']}"
        parts += [f"### {name}", "", inner["doc"], ""]
        parts += _fields(inner) if inner["type"] == "record" else _symbols(inner)
    return "\n".join(parts)


def _fields(definition: Definition) -> list[str]:
    lines = ["| field | type | default | meaning |", "| --- | --- | --- | --- |"]
    for field in definition["fields"]:
        default = f"`{json.dumps(field['default'])}`" if "default" in field else "-"
        cells = (f"`{field['name']}`", _type(field["type"]), default, field["doc"])
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return [*lines, ""]


def _symbols(definition: Definition) -> list[str]:
    return [f"One of {', '.join(f'`{symbol}`' for symbol in definition['symbols'])}.", ""]


def _type(node: Any) -> str:
    """A type in words."""
    match node:
        case str():
            return node if node in _primitives else f"`{node.rsplit('.', 1)[-1]}`"
        case list():
            return " or ".join(_type(member) for member in node)
        case {"type": "array", "items": items}:
            return f"list of {_type(items)}"
        case {"type": "map", "values": values}:
            return f"map of {_type(values)}"
        case {"type": "record" | "enum", "name": name}:
            return f"`{name}`"
        case {"type": kind}:
            return f"{kind} ({node[_array_key]})" if _array_key in node else str(kind)
    raise TypeError(f"{node!r} is no Avro type")


def _named_types(node: Any) -> Iterator[Definition]:
    """Records and enumerations below a definition, in the order in which they are declared."""
    match node:
        case list():
            for member in node:
                yield from _named_types(member)
        case {"fields": fields}:
            for field in fields:
                yield from _declared(field["type"])
        case {"items": inner} | {"values": inner}:
            yield from _declared(inner)


def _declared(node: Any) -> Iterator[Definition]:
    if isinstance(node, dict) and node["type"] in {"record", "enum"}:
        yield node
    if isinstance(node, list):
        for member in node:
            yield from _declared(member)
    else:
        yield from _named_types(node)


if __name__ == "__main__":
    sys.stdout.write(schema_reference())
