"""The archive of a run: one zip file whose members are Avro object container files, weights files and a manifest.

    manifest.json               what the archive holds; see `ArchiveManifest`
    topics/<topic>/<n>.avro     the committed records of partition n: offset, timestamp_ms, key, headers, value
    weights/<name>              files of published versions, as `rollog.kernel.weights` names them
    payloads/<sha256>           objects that records of large samples name

Members are stored as they are: records are compressed inside their containers (Avro's deflate), so that a reader
can go to any block of a member. An archive may come from anybody. Readers extract nothing under a name of its
choosing, take at most `largest_block_bytes` into memory at once whatever a block claims to hold, and compare each
member with the sha256 in the manifest before they use it.
"""

from __future__ import annotations

import hashlib
import json
import stat
import struct
import zipfile
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Annotated, Any, Literal

from fastavro import parse_schema
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from rollog.kernel.broker.limits import dead_letter_margin_bytes, largest_record_limit_bytes
from rollog.kernel.errors import ArchiveError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

format_name: Literal["rollog-archive"] = "rollog-archive"
format_version: Literal[1] = 1
manifest_member = "manifest.json"
block_bytes = 1 << 16
"""Bytes of records after which a writer ends a block."""
largest_block_bytes = largest_record_limit_bytes + dead_letter_margin_bytes + (1 << 20)
"""A block holds less than `block_bytes`, or these and one record."""
largest_manifest_bytes = 64 << 20
most_members = 100_000
_chunk_bytes = 1 << 20

record_schema: dict[str, Any] = {
    "type": "record",
    "name": "rollog.archive.Record",
    "fields": [
        {"name": "offset", "type": "long"},
        {"name": "timestamp_ms", "type": "long"},
        {"name": "key", "type": ["null", "bytes"]},
        {
            "name": "headers",
            "type": {
                "type": "array",
                "items": {
                    "type": "record",
                    "name": "rollog.archive.Header",
                    "fields": [{"name": "name", "type": "string"}, {"name": "value", "type": "bytes"}],
                },
            },
        },
        {"name": "value", "type": ["null", "bytes"]},
    ],
}
parsed_record_schema = parse_schema(record_schema)

_Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
_Count = Annotated[int, Field(ge=0, lt=2**63)]
_TopicName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_-][A-Za-z0-9._-]{0,248}$")]
_WeightsName = Annotated[
    str, Field(pattern=r"^v\d{6,9}-[0-9a-f]{16}(\.safetensors|\.manifest|-[0-9]{2,5}\.(safetensors|patch))$")
]


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class ArchivedPartition(_Part):
    """One partition: the offsets it had in its topic, and its member."""

    beginning_offset: _Count
    end_offset: _Count
    num_records: _Count
    num_bytes: _Count
    sha256: _Sha256


class ArchivedTopic(_Part):
    """One topic with its settings, by their Kafka names."""

    replication_factor: _Count
    config: dict[str, str]
    partitions: tuple[ArchivedPartition, ...]


class ArchivedWeights(_Part):
    """One file of a published version."""

    version: _Count
    num_bytes: _Count
    sha256: _Sha256


class ArchiveManifest(_Part):
    """What an archive holds. `weights` are by file name; `ledger_head` is None where the ledger has not begun.

    `payloads` has the bytes of each object by its sha256; an archive without any is written without the field.
    """

    format: Literal["rollog-archive"] = format_name
    format_version: Literal[1] = format_version
    rollog_version: str
    prefix: str
    run: str
    ledger_head: _Sha256 | None
    weights_chosen: str
    topics: dict[_TopicName, ArchivedTopic]
    weights: dict[_WeightsName, ArchivedWeights]
    payloads: dict[_Sha256, _Count] = Field(default_factory=dict)

    def members(self) -> dict[str, tuple[int, str]]:
        """Bytes and sha256 of every other member by its name."""
        partitions = {
            topic_member(name, number): (partition.num_bytes, partition.sha256)
            for name, topic in self.topics.items()
            for number, partition in enumerate(topic.partitions)
        }
        weights = {weights_member(name): (each.num_bytes, each.sha256) for name, each in self.weights.items()}
        payloads = {payload_member(name): (num_bytes, name) for name, num_bytes in self.payloads.items()}
        return partitions | weights | payloads


def topic_member(topic: str, partition: int) -> str:
    """Name of the member with one partition's records."""
    return f"topics/{topic}/{partition}.avro"


def weights_member(name: str) -> str:
    """Name of the member that is a weights file."""
    return f"weights/{name}"


def payload_member(sha256: str) -> str:
    """Name of the member that is the object of a large sample."""
    return f"payloads/{sha256}"


class ArchiveFile:
    """An archive on disk whose manifest has been checked against its directory. Raises ArchiveError."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._verified: set[str] = set()
        try:
            if not stat.S_ISREG(path.stat().st_mode):
                raise ArchiveError(f"{path} is not a file; give an archive made by `rollog export`")
            with zipfile.ZipFile(path) as file:
                self._infos = _checked_directory(file, path)
                self.manifest = _read_manifest(file, path)
        except (OSError, zipfile.BadZipFile, NotImplementedError, struct.error, EOFError) as error:
            raise ArchiveError(
                f"archive {path} cannot be read ({error}); give a whole file made by `rollog export`"
            ) from error
        self._members = self.manifest.members()
        self._check_members()

    def open(self) -> IO[bytes]:
        """The file itself, for `member`."""
        return self.path.open("rb")

    def window(self, file: IO[bytes], name: str) -> Member:
        """One member, as it is. Raises ArchiveError."""
        return Member(file, self._start(file, name), self._members[name][0], self.error(name, ""))

    def member(self, file: IO[bytes], name: str) -> Member:
        """One member, whose sha256 is compared with the manifest's the first time. Raises ArchiveError."""
        member, sha256 = self.window(file, name), self._members[name][1]
        if name not in self._verified:
            digest = hashlib.sha256()
            for chunk in member.chunks():
                digest.update(chunk)
            if digest.hexdigest() != sha256:
                raise self.error(name, "does not have the sha256 that the manifest names")
            self._verified.add(name)
        return member

    def error(self, name: str, what: str) -> ArchiveError:
        """The error for a member that cannot be used."""
        return ArchiveError(
            f"archive {self.path}: member {name} {what or 'ends too early'}; the archive is damaged or was altered: "
            "fetch or export it again"
        )

    def _start(self, file: IO[bytes], name: str) -> int:
        """Where the bytes of a member begin: behind its own local header, 30 bytes, name and extra field."""
        file.seek(self._infos[name].header_offset)
        header = file.read(30)
        if len(header) != 30 or header[:4] != b"PK\x03\x04":  # noqa: PLR2004 - the size of a local header
            raise self.error(name, "has no local header")
        name_bytes, extra_bytes = struct.unpack_from("<HH", header, 26)
        return self._infos[name].header_offset + 30 + int(name_bytes) + int(extra_bytes)

    def _check_members(self) -> None:
        named = self._members.keys() | {manifest_member}
        if missing := sorted(named - self._infos.keys()):
            raise self.error(missing[0], "is named by the manifest and missing")
        if unnamed := sorted(self._infos.keys() - named):
            raise self.error(repr(unnamed[0])[:200], "is not named by the manifest")
        for name, (num_bytes, _) in self._members.items():
            if self._infos[name].file_size != num_bytes:
                raise self.error(
                    name, f"has {self._infos[name].file_size} bytes, the manifest says {num_bytes}"
                )


@dataclass(frozen=True, slots=True)
class Member:
    """A window on the bytes of one member."""

    file: IO[bytes]
    start: int
    num_bytes: int
    too_short: ArchiveError

    def read(self, position: int, num_bytes: int) -> bytes:
        """Exactly these bytes. Raises ArchiveError where the member has fewer."""
        if num_bytes < 0 or position < 0 or position + num_bytes > self.num_bytes:
            raise self.too_short
        self.file.seek(self.start + position)
        data = self.file.read(num_bytes)
        if len(data) != num_bytes:
            raise self.too_short
        return data

    def head(self, position: int, num_bytes: int) -> bytes:
        """At most these bytes: fewer at the end."""
        return self.read(position, max(0, min(num_bytes, self.num_bytes - position)))

    def chunks(self) -> Iterator[bytes]:
        """All bytes, in pieces."""
        for position in range(0, self.num_bytes, _chunk_bytes):
            yield self.head(position, _chunk_bytes)


def _checked_directory(file: zipfile.ZipFile, path: Path) -> dict[str, zipfile.ZipInfo]:
    infos = file.infolist()
    if len(infos) > most_members:
        raise ArchiveError(
            f"archive {path} has {len(infos)} members, more than {most_members}: it is not read"
        )
    found: dict[str, zipfile.ZipInfo] = {}
    for info in infos:
        place = f"archive {path}: member {info.filename!r:.200}"
        if info.filename in found:
            raise ArchiveError(f"{place} is there twice; the archive was altered: fetch or export it again")
        if info.compress_type != zipfile.ZIP_STORED or info.flag_bits & 1:
            raise ArchiveError(
                f"{place} is compressed or encrypted as a whole; give the file as `rollog export` made it"
            )
        found[info.filename] = info
    return found


def _read_manifest(file: zipfile.ZipFile, path: Path) -> ArchiveManifest:
    """The manifest. Raises ArchiveError."""
    try:
        if file.getinfo(manifest_member).file_size > largest_manifest_bytes:
            raise ArchiveError(f"archive {path}: {manifest_member} is over {largest_manifest_bytes} bytes")
        loaded = json.loads(file.read(manifest_member))
    except (KeyError, ValueError, RecursionError) as error:
        raise ArchiveError(
            f"archive {path}: {manifest_member} is missing or no JSON ({error}); give a file made by `rollog export`"
        ) from error
    version = loaded.get("format_version") if isinstance(loaded, dict) else None
    if version != format_version:
        raise ArchiveError(
            f"archive {path} has format version {version!r:.40}, this rollog reads {format_version}: use the rollog "
            "that made it, or export the run again"
        )
    try:
        return ArchiveManifest.model_validate_json(json.dumps(loaded))
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))[:200]
        raise ArchiveError(
            f"archive {path}: {manifest_member}: {place}: {first['msg']}; the archive was altered: export it again"
        ) from error
