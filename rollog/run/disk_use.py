"""What a run takes up on this machine's disk, and where."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from rollog.kernel.errors import ConfigError
from rollog.kernel.weights import WeightsStore
from rollog.run.connection import data_directory

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from rollog.kernel.broker.topics import RunTopics
    from rollog.settings.settings import Settings


def bytes_of_run(topics: RunTopics, settings: Settings, home: Path) -> int:
    """Bytes of a run's topics in the embedded broker, its directory and its weights, on this disk."""
    places = [home / "runs" / topics.run, *_topic_directories(topics, home)]
    return sum(map(directory_bytes, places)) + _weights_bytes(settings)


def directory_bytes(directory: Path) -> int:
    """Bytes that the files below a directory hold; 0 where there is none. What goes away meanwhile does not count."""
    total = 0
    for path in directory.rglob("*"):
        with suppress(OSError):
            if path.is_file() and not path.is_symlink():
                status = path.stat()
                # Indexes of Kafka are written sparsely: their length says nothing.
                total += min(status.st_size, status.st_blocks * 512)
    return total


def _topic_directories(topics: RunTopics, home: Path) -> Iterator[Path]:
    return data_directory(home).glob(f"*/{topics.prefix}.{topics.run}.*-*")


def _weights_bytes(settings: Settings) -> int:
    if settings.weights.uri is None:
        return 0
    try:
        store = WeightsStore(settings.weights.uri)
    except ConfigError:
        return 0
    return store.num_bytes if store.is_local else 0
