"""Objects of large samples, beside the weights: written once, named after their content, in a folder of their run.

    <store>/payloads/<prefix>.<run>/<sha256>

A folder for each run, because runs may share a store, and runs that begin alike write equal objects: what one of them
deletes must be its own. An object appears under its name only when it is complete, as weights files do. Readers take no
more bytes than its record names, and trust them only after their sha256 was compared.
"""

from __future__ import annotations

import os
import re
import time
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import IO, TYPE_CHECKING

from rollog.kernel.atomic_write import make_durable, partial_file, sync_path
from rollog.kernel.errors import PayloadAltered, PayloadError, PayloadMissing, PayloadStoreSilent
from rollog.kernel.store_folder import StoreFolder

if TYPE_CHECKING:
    from rollog.kernel.broker.topics import RunTopics
    from rollog.kernel.weights import WeightsStore
    from schemas import Payload

_folder_name = re.compile(r"[A-Za-z0-9_-]{1,64}\.[A-Za-z0-9_-]{1,64}")
_object_name = re.compile(r"[0-9a-f]{64}")


def payloads_folder(topics: RunTopics) -> str:
    """Name of the folder of a run, below `payloads`. Raises PayloadError for a run that can have none."""
    name = f"{topics.prefix}.{topics.run}"
    if not _folder_name.fullmatch(name):
        raise PayloadError(f"{name!r} is no prefix and name of a run: its large samples can have no folder")
    return name


class PayloadStore:
    """The objects of one run in the store of its weights.

    Every method but `put` and `fetch` lets errors of the file system through.
    """

    def __init__(self, weights: WeightsStore, topics: RunTopics) -> None:
        self._weights = weights
        self._fs, root = weights.filesystem
        self._root = f"{root}/payloads/{payloads_folder(topics)}"
        self._folder = StoreFolder(self._fs, self._root)
        self.public_uri = f"{weights.public_uri.rstrip('/')}/payloads/{payloads_folder(topics)}"

    def put(self, data: bytes) -> str:
        """Store an object; when this returns it is durable. Returns its name, the sha256 of `data`.

        An object that is there already is written anew: its age says when it was last needed. Raises PayloadStoreSilent
        where it cannot be written, a full disk included.
        """
        name = sha256(data).hexdigest()
        try:
            if self._weights.is_local:
                self._write(name, data)
            else:
                self._folder.make()
                self._fs.pipe_file(self._folder.path(name), data)
        except Exception as error:  # object stores raise errors of their own libraries
            raise PayloadStoreSilent(
                f"object {name} of {len(data)} bytes cannot be written to {self.public_uri} "
                f"({type(error).__name__}: {error}); check that the store answers, may be written to and has room"
            ) from error
        return name

    def fetch(self, payload: Payload) -> bytes:
        """Exactly the bytes that a record names. Raises PayloadMissing, PayloadAltered, PayloadStoreSilent."""
        _check_name(payload.sha256)
        try:
            with self._fs.open(self._folder.path(payload.sha256), "rb") as source:
                data = _read(source, payload.num_bytes + 1)
        except FileNotFoundError as error:
            self._check_answers(payload.sha256)
            raise PayloadMissing(
                f"object {payload.sha256} is not in {self.public_uri}; check that every role uses the same store, and "
                "restore it from a copy"
            ) from error
        except Exception as error:  # object stores raise errors of their own libraries
            raise self._silent(payload.sha256, f"{type(error).__name__}: {error}") from error
        if len(data) != payload.num_bytes or sha256(data).hexdigest() != payload.sha256:
            raise PayloadAltered(
                f"object {payload.sha256} in {self.public_uri} has not the {payload.num_bytes} bytes that its record "
                "names: it was cut or altered; restore it from a copy"
            )
        return data

    def names(self, *, least_age_seconds: float = 0.0) -> list[str]:
        """Names of all complete objects that were written at least so long ago; all of them for 0."""
        names = sorted(name for name in self._folder.names() if _object_name.fullmatch(name))
        if least_age_seconds <= 0:
            return names
        newest = time.time() - least_age_seconds
        return [name for name in names if self._written(name) <= newest]

    def delete(self, name: str) -> None:
        """Remove one object; a missing one is fine."""
        _check_name(name)
        self._folder.remove(name)

    def delete_all(self) -> int:
        """Remove every object, unfinished ones too, and on this disk their folder; returns how many objects."""
        names = self.names()
        for name in names:
            self.delete(name)
        for name in self._folder.partial_names():
            self._folder.remove(name)
        if self._weights.is_local:
            for folder in (Path(self._root), Path(self._root).parent):
                with suppress(OSError):  # it is not empty, or there is none
                    folder.rmdir()
        return len(names)

    @property
    def num_bytes(self) -> int:
        """Bytes of all objects. What goes away meanwhile does not count."""
        return self._folder.num_bytes(self.names())

    def _check_answers(self, name: str) -> None:
        """A store without any weights is not the run's: a disk that is not mounted looks like an empty folder.

        Raises PayloadStoreSilent.
        """
        try:
            has_weights = bool(self._weights.names())
        except Exception as error:  # object stores raise errors of their own libraries
            raise self._silent(name, f"{type(error).__name__}: {error}") from error
        if not has_weights:
            raise self._silent(name, "it holds no weights of the run either")

    def _silent(self, name: str, reason: str) -> PayloadStoreSilent:
        return PayloadStoreSilent(
            f"object {name} cannot be read from {self.public_uri} ({reason}); check that the store is there and answers"
        )

    def _written(self, name: str) -> float:
        """When an object was written, in seconds since 1970; now for one that is gone."""
        with suppress(FileNotFoundError):
            return float(self._fs.modified(self._folder.path(name)).timestamp())
        return time.time()

    def _write(self, name: str, data: bytes) -> None:
        root = Path(self._root)
        if not root.parent.parent.is_dir():
            # Made here, it could be a folder on the wrong disk: workers load weights from the store before.
            raise FileNotFoundError(f"there is no {root.parent.parent}")
        make_durable(root)
        with partial_file(root) as partial:
            with partial.open("wb") as target:
                target.write(data)
                target.flush()
                os.fsync(target.fileno())
            partial.replace(root / name)
        # The folders above may be new, too: an object is durable when the way to it is.
        for folder in (root, root.parent, root.parent.parent):
            sync_path(folder)


def _check_name(name: str) -> None:
    if not _object_name.fullmatch(name):
        raise PayloadAltered(f"{name[:80]!r} is no name of an object: it has 64 hexadecimal digits")


def _read(source: IO[bytes], most_bytes: int) -> bytes:
    """At most so many bytes, whatever the file claims to hold."""
    pieces: list[bytes] = []
    while most_bytes > 0 and (piece := source.read(min(most_bytes, 1 << 20))):
        pieces.append(piece)
        most_bytes -= len(piece)
    return b"".join(pieces)
