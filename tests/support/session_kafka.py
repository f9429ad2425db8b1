"""One Apache Kafka for all processes of a test session.

Every broker costs tens of processor seconds, most of them for what Java compiles anew. So the process that starts the
test processes starts one broker, when the first test asks for it, and stops it when all have ended.

    test process         writes `wanted`, waits for one of the others
    starting process     writes `ready.json` (a `SessionKafka`) or `failed` (why there is none)
"""

from __future__ import annotations

import json
import tempfile
import threading
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self

from rollog.kernel.broker.embedded import EmbeddedKafka
from rollog.kernel.errors import ConfigError, RollogError
from support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

_look_seconds = 0.05
_start_timeout_seconds = 300.0


@dataclass(frozen=True, slots=True)
class SessionKafka:
    """A broker that runs for the whole session, in this process or another: `address` is `host:port`."""

    address: str
    pid: int
    log_path: Path

    @classmethod
    @contextmanager
    def started(cls, directory: Path, cache_directory: Path) -> Iterator[Self]:
        """A broker of this process's own, with its data in `directory`. Raises ConfigError without its jars."""
        with EmbeddedKafka(directory, cache_directory) as kafka:
            yield cls(kafka.address, kafka.pid, kafka.log_path)

    @classmethod
    def asked_for(cls, exchange: Path) -> Self:
        """The broker of the process that started this one. Raises ConfigError where it cannot be started."""
        (exchange / "wanted").touch()
        ready, failed = exchange / "ready.json", exchange / "failed"
        wait_until(
            lambda: ready.exists() or failed.exists(),
            timeout_seconds=_start_timeout_seconds,
            message="the session's broker has started",
        )
        if failed.exists():
            raise ConfigError(failed.read_text())
        address, pid, log_path = json.loads(ready.read_text())
        return cls(address, pid, Path(log_path))


class SharedKafka:
    """In the process that starts test processes: gives them a broker once one of them asks. `exchange` is for them."""

    def __init__(self, cache_directory: Path) -> None:
        self._cache_directory = cache_directory
        self._directory = tempfile.TemporaryDirectory(prefix="rollog-test-kafka-")
        self.exchange = Path(self._directory.name)
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="session-kafka")
        self._thread.start()

    def stop(self) -> None:
        """End the broker and remove its data."""
        self._is_over.set()
        self._thread.join()
        self._directory.cleanup()

    def _serve(self) -> None:
        while not (self.exchange / "wanted").exists():
            if self._is_over.wait(_look_seconds):
                return
        try:
            with SessionKafka.started(self.exchange / "kafka", self._cache_directory) as kafka:
                self._say("ready.json", json.dumps([kafka.address, kafka.pid, str(kafka.log_path)]))
                self._is_over.wait()
        except RollogError as error:
            self._say("failed", str(error))

    def _say(self, name: str, text: str) -> None:
        written = self.exchange / f"{name}.written"
        written.write_text(text)
        written.replace(self.exchange / name)
