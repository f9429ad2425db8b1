"""`rollog train` as every rank of a launcher, on Apache Kafka: rank 0 is killed, and torchrun goes on with the run."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from support.small_training import FakeRun, a_group
from support.threaded_run import small_settings
from support.waiting import wait_until

from rollog.kernel.broker.topics import RunTopics
from rollog.run.creation import create_run
from schemas import Genesis, LedgerKind, Step

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from rollog.kernel.broker.kafka import KafkaBroker

pytestmark = [pytest.mark.broker, pytest.mark.engine, pytest.mark.slow, pytest.mark.timeout(900)]

patience_seconds = 240.0
run_name = "launched-ranks"


class Launches:
    """A run whose samples are there already, and the processes started to train it."""

    def __init__(self, broker: KafkaBroker, directory: Path) -> None:
        self.run = FakeRun(broker, RunTopics("rollog", run_name))
        self.directory = directory
        self._broker = broker
        self._processes: list[subprocess.Popen[bytes]] = []
        create_run(broker, small_settings(directory, run_name, run={"prefix": "rollog"}))

    def start(self, name: str, *launcher: str, **environment: str) -> subprocess.Popen[bytes]:
        words = (*launcher, "-m", *(("--",) if launcher else ()), "rollog.cli.main", "train")
        place = ("--run", run_name, "--broker", self._broker.address, "--home", str(self.directory))
        kept = {key: value for key, value in os.environ.items() if not key.startswith("ROLLOG_")}
        path = os.pathsep.join(path for path in sys.path if path)
        with (self.directory / f"{name}.log").open("ab") as output:
            process = subprocess.Popen(
                [sys.executable, *words, *place],
                stdout=output,
                stderr=subprocess.STDOUT,
                env=kept | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"} | environment,
            )
        self._processes.append(process)
        return process

    def said(self, name: str) -> str:
        return (self.directory / f"{name}.log").read_text(errors="replace")

    def sha256_of(self, version: int, name: str) -> str:
        def found() -> str | None:
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
        for process in self._processes:
            process.kill()
            process.wait()


@pytest.fixture
def launches(kafka_broker: KafkaBroker, tmp_path: Path) -> Iterator[Launches]:
    made = Launches(kafka_broker, tmp_path)
    yield made
    made.close()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


def test_a_launcher_s_ranks_train_end_together_and_are_started_again(launches: Launches) -> None:
    shared = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    first = launches.start("rank-0", RANK="0", LOCAL_RANK="0", **shared)
    second = launches.start("rank-1", RANK="1", LOCAL_RANK="1", **shared)
    launches.send_batch(0, "rank-0")
    launches.sha256_of(1, "rank-0")
    first.kill()
    assert second.wait(60) == 1, launches.said("rank-1")
    assert "rank 0 is gone" in launches.said("rank-1")

    launcher = launches.start(
        "torchrun", "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", str(free_port())
    )
    for version in (1, 2):
        launches.send_batch(version, "torchrun")
    launches.sha256_of(3, "torchrun")
    launches.run.stop()
    assert launcher.wait(patience_seconds) == 0, launches.said("torchrun")
    genesis, *_, close = launches.run.ledger()
    assert isinstance(genesis.body, Genesis)
    assert genesis.body.world_size == 2
    assert close.kind is LedgerKind.CLOSE
