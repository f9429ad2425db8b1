"""An embedded Apache Kafka for one experiment, with a directory for what its runs write."""

from __future__ import annotations

import tempfile
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from rollog.kernel.broker.embedded import EmbeddedKafka
from rollog.kernel.broker.kafka import KafkaBroker
from rollog.kernel.errors import ConfigError
from rollog.run.connection import cache_directory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from benchmarks.harness.variant import Job
    from rollog.kernel.broker.ports import Broker

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnKafka:
    """A broker, the address at which other processes find it, and the directory `home` of their runs."""

    broker: Broker
    address: str
    home: Path
    pid: int | None = None
    """Of the broker's process."""

    def runs(self, measure: Callable[[Job, Broker, Path], Result]) -> Callable[[], Callable[[Job], Result]]:
        """What connects a process of its own and makes runs there, each below `home`; `measure` stands in a module."""
        return partial(_connected, measure, self.address, self.home)


@contextmanager
def own_kafka(home: Path) -> Iterator[OwnKafka]:
    """Start a Kafka with the caches of `home`; it ends, and its data and runs are removed, on exit."""
    with (
        tempfile.TemporaryDirectory(prefix="rollog-bench-") as directory,
        EmbeddedKafka(Path(directory) / "kafka", cache_directory(home)) as kafka,
    ):
        runs = Path(directory) / "home"
        runs.mkdir()
        yield OwnKafka(broker=KafkaBroker(kafka.address), address=kafka.address, home=runs, pid=kafka.pid)


def kafka_broker(address: str, client: str, *, connect_timeout_seconds: float) -> Broker:
    """The cluster at `address` with the client library that `broker.client` names; empty: the default one.

    Raises ConfigError where this installation has no choice.
    """
    if not client:
        return KafkaBroker(address, connect_timeout_seconds=connect_timeout_seconds)
    if "client" not in signature(KafkaBroker).parameters:
        raise ConfigError(f"--client {client}: this installation has one Kafka client; leave the option out")
    settings: dict[str, Any] = {"client": client}
    return KafkaBroker(address, connect_timeout_seconds=connect_timeout_seconds, **settings)


def _connected(
    measure: Callable[[Job, Broker, Path], Result], address: str, home: Path
) -> Callable[[Job], Result]:
    broker = KafkaBroker(address, connect_timeout_seconds=30.0)
    return lambda job: measure(job, broker, home)
