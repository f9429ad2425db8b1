"""What a run takes up on this machine's disk, and where."""

from __future__ import annotations

import os
from contextlib import suppress
from glob import iglob
from pathlib import Path
from typing import TYPE_CHECKING

from rollog.kernel.errors import ConfigError
from rollog.kernel.payloads import PayloadStore
from rollog.kernel.weights import WeightsStore
from rollog.run.connection import data_directory

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rollog.kernel.broker.topics import RunTopics


def bytes_of_run(topics: RunTopics, weights_uri: str, home: Path) -> int:
    """Bytes on this disk: a run's topics in the embedded broker, its directory, its weights, its large samples."""
    places = [home / "runs" / topics.run, *_topic_directories(topics, home)]
    return sum(map(directory_bytes, places)) + _stored_bytes(weights_uri, topics)


def directory_bytes(directory: Path) -> int:
    """Bytes that the files below a directory hold; 0 where there is none. What goes away meanwhile does not count."""
    total = 0
    for parent, _, names in os.walk(directory):
        for path in (Path(parent, name) for name in names):
            with suppress(OSError):
                if path.is_file() and not path.is_symlink():
                    status = path.stat()
                    # Indexes of Kafka are written sparsely: their length says nothing.
                    total += min(status.st_size, status.st_blocks * 512)
    return total


def _topic_directories(topics: RunTopics, home: Path) -> Iterator[Path]:
    data, pattern = data_directory(home), f"*/{topics.prefix}.{topics.run}.*-*"
    return (data / found for found in iglob(pattern, root_dir=data))  # noqa: PTH207 - that raises for what goes away


def _stored_bytes(uri: str, topics: RunTopics) -> int:
    if not uri:
        return 0
    with suppress(ConfigError, OSError):
        store = WeightsStore(uri)
        if store.is_local:
            return store.num_bytes + PayloadStore(store, topics).num_bytes
    return 0
