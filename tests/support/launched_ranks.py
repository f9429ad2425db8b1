"""A run whose samples come from the test, and the processes that are started to train it: ranks, launchers, pods."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from rollog.kernel.broker.topics import RunTopics
from rollog.run.creation import create_run
from schemas import Genesis, Step
from support.listening import processes_below
from support.small_training import FakeRun, a_group
from support.threaded_run import small_settings
from support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from rollog.kernel.broker.kafka import KafkaBroker

patience_seconds = 420.0


class Launches:
    """A run whose samples are there already, and the processes started to train it."""

    def __init__(
        self, broker: KafkaBroker, directory: Path, run_name: str, **sections: dict[str, Any]
    ) -> None:
        """`sections` are settings of the run, by section."""
        self.run = FakeRun(broker, RunTopics("rollog", run_name))
        self.run_name = run_name
        self.directory = directory
        self._broker = broker
        self._processes: list[subprocess.Popen[bytes]] = []
        create_run(broker, small_settings(directory, run_name, **{"run": {"prefix": "rollog"}, **sections}))

    def start(self, name: str, *launcher: str, **environment: str) -> subprocess.Popen[bytes]:
        """`rollog train`, by a launcher or alone."""
        words = (*launcher, "-m", *(("--",) if launcher else ()), "rollog.cli.main", "train")
        return self.start_command(name, [sys.executable, *words, *self.place], environment)

    @property
    def place(self) -> tuple[str, ...]:
        """What a role is told of this run."""
        return ("--run", self.run_name, "--broker", self._broker.address, "--home", str(self.directory))

    def start_command(
        self, name: str, words: Sequence[str], environment: Mapping[str, str]
    ) -> subprocess.Popen[bytes]:
        """Any command; what it says is appended to the log of that name."""
        kept = {key: value for key, value in os.environ.items() if not key.startswith("ROLLOG_")}
        path = os.pathsep.join(path for path in sys.path if path)
        with (self.directory / f"{name}.log").open("ab") as output:
            process = subprocess.Popen(
                words,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=kept | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"} | dict(environment),
            )
        self._processes.append(process)
        return process

    def said(self, name: str) -> str:
        return (self.directory / f"{name}.log").read_text(errors="replace")

    def sha256_of(self, version: int, name: str) -> str:
        def found() -> str | None:
            time.sleep(0.5)  # each look makes a consumer, and the ranks need the processors
            bodies = [record.body for record in self.run.ledger() if record.version == version]
            return next((body.weights_sha256 for body in bodies if isinstance(body, Genesis | Step)), None)

        try:
            return wait_until(found, patience_seconds, f"version {version}") or ""
        except AssertionError as error:
            raise AssertionError(self.said(name)) from error

    def send_batch(self, version: int, name: str) -> None:
        sha256 = self.sha256_of(version, name)
        for group in (2 * version, 2 * version + 1):
            self.run.send(*a_group(group, weights_sha256=sha256, version=version, size=4))

    def close(self) -> None:
        """End every process, and what it has started."""
        for process in self._processes:
            for each in processes_below(process.pid):
                with suppress(ProcessLookupError):
                    os.kill(each.pid, signal.SIGKILL)
            process.wait()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port
