"""A run that an earlier version began goes on under this one, role by role, as docs/upgrade.md says."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tarfile
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from support.threaded_run import settings_file, small_settings
from support.waiting import wait_until

from consumers.ledger import read_ledger
from rollog.kernel.broker.reading import read_topic
from rollog.kernel.broker.topics import RunTopics
from schemas import LedgerKind, RolloutTask, Sample, TaskBatch
from schemas.codec import decode

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rollog.kernel.broker.kafka import KafkaBroker

pytestmark = [
    pytest.mark.broker,
    pytest.mark.engine,
    pytest.mark.slow,
    pytest.mark.timeout(1800),
    # Reads the log often, each time through a new client of kafka-python, which on a busy machine is closed while a
    # connection of its own is still being made, and leaves that socket to the garbage collector.
    pytest.mark.filterwarnings(r"ignore:unclosed <socket\.socket:ResourceWarning"),
]

root = Path(__file__).parents[2]
earlier = "88f331580fdee7510ec7b63a18cc0257b6accb6a"
"""The last commit whose roles know no record of several tasks, no secured broker and no second Kafka client."""
patience_seconds = 600.0
final_steps = 6
"""How many the upgraded trainer makes."""


@pytest.fixture(scope="module")
def earlier_version(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the earlier version lies; skips where the repository's history is not there."""
    directory = tmp_path_factory.mktemp("earlier")
    command = ["git", "archive", earlier, "consumers", "producers", "rollog", "schemas", "trainer"]
    archive = subprocess.run(command, check=False, capture_output=True, cwd=root)
    if archive.returncode:
        pytest.skip(f"no commit {earlier[:7]} in this copy of the repository: {archive.stderr.decode()}")
    with tarfile.open(fileobj=BytesIO(archive.stdout)) as files:
        files.extractall(directory, filter="data")
    return directory


class Versions:
    """One run, and roles of it of either version, each as a process."""

    def __init__(self, broker: KafkaBroker, directory: Path, earlier_version: Path, run: str) -> None:
        self.topics = RunTopics("rollog", run)
        self._broker = broker
        self._directory = directory
        self._code = {"earlier": earlier_version, "this": root}
        self._pace = directory / "slowly"
        self._pace.touch()
        self._processes: list[subprocess.Popen[bytes]] = []
        settings = small_settings(
            directory,
            run,
            run={"prefix": "rollog", "num_steps": 1_000_000},
            groups={"groups_per_batch": 4, "group_size": 4},
            reward={
                "function": "support.loop_rewards:even_words_at_a_pace",
                "num_processes": 1,
                "environment": ["ROLLOG_TEST_PACE"],
            },
        )
        settings_file(directory / "run.toml", settings)

    def start(self, version: str, *words: str) -> subprocess.Popen[bytes]:
        """A command of a version."""
        place = ("--broker", self._broker.address, "--home", str(self._directory / "home"))
        with self.log(version, words).open("ab") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "rollog.cli.main", *words, *place],
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=self._directory,
                env=self._environment(version),
            )
        self._processes.append(process)
        return process

    def start_role(self, version: str, *words: str) -> subprocess.Popen[bytes]:
        """A role of a version."""
        return self.start(version, *words, "--run", self.topics.run)

    def told(self, version: str, *words: str) -> str:
        """What a command of a version says that ends with 0."""
        status = self.start(version, *words).wait(patience_seconds)
        said = self.log(version, words).read_text()
        assert status == 0, said
        return said

    def replace(self, process: subprocess.Popen[bytes], *words: str) -> subprocess.Popen[bytes]:
        """End a role gracefully, and start it in this version."""
        process.send_signal(signal.SIGTERM)
        assert process.wait(patience_seconds) == 128 + signal.SIGTERM
        return self.start_role("this", *words)

    def hurry(self) -> None:
        """From now on rewards cost no time."""
        self._pace.unlink()

    def log(self, version: str, words: tuple[str, ...]) -> Path:
        return self._directory / f"{'-'.join(words[:3]).replace('--', '')}-{version}.log"

    def num_steps(self) -> int:
        ledger = read_ledger(self._broker, self.topics)
        return sum(entry.record.kind is LedgerKind.STEP for entry in ledger)

    def orders(self) -> list[RolloutTask | TaskBatch]:
        """Records of `tasks` that order rollouts."""
        records = [
            decode(record.value or b"")
            for record in read_topic(self._broker, self.topics.tasks, client_id="test")
        ]
        return [record for record in records if isinstance(record, RolloutTask | TaskBatch)]

    def workers(self) -> set[str]:
        """Who has made samples."""
        records = [
            decode(record.value or b"")
            for record in read_topic(self._broker, self.topics.samples, client_id="test")
        ]
        return {record.worker_id for record in records if isinstance(record, Sample)}

    def wait_for_steps(self, number: int) -> None:
        """Wait for so many more."""
        done = self.num_steps()
        wait_until(lambda: self.num_steps() >= done + number, patience_seconds, f"{number} more steps")

    def wait_for_samples_of(self, name: str, before: set[str]) -> None:
        """Wait until a worker of that name, none of those before, has made one."""
        wait_until(
            lambda: any(worker.startswith(name) for worker in self.workers() - before),
            patience_seconds,
            f"samples of a new worker {name}",
        )

    def close(self) -> None:
        for process in self._processes:
            process.kill()
            process.wait()

    def _environment(self, version: str) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("ROLLOG_")}
        others = [path for path in sys.path if path and Path(path).resolve() != root]
        path = os.pathsep.join([str(self._code[version]), *others])
        return kept | {"PYTHONPATH": path, "ROLLOG_TEST_PACE": str(self._pace)}


@pytest.fixture
def versions(
    kafka_broker: KafkaBroker, tmp_path: Path, earlier_version: Path, run_topics: RunTopics
) -> Iterator[Versions]:
    made = Versions(kafka_broker, tmp_path, earlier_version, run_topics.run)
    yield made
    made.close()


def test_a_running_run_is_upgraded_role_by_role(versions: Versions) -> None:
    run = versions.topics.run
    versions.told("earlier", "topics", "create", "--run", run, "--config", "run.toml")
    dispatcher = versions.start_role("earlier", "dispatch")
    trainer = versions.start_role("earlier", "train")
    workers = {name: versions.start_role("earlier", "rollout", "--name", name) for name in ("a", "b")}
    versions.wait_for_steps(2)
    found = re.search(r"^head ([0-9a-f]{64})", versions.told("earlier", "audit", run), re.MULTILINE)
    assert found is not None

    for name, process in workers.items():
        before = versions.workers()
        workers[name] = versions.replace(process, "rollout", "--name", name)
        versions.wait_for_samples_of(name, before)
    dispatcher = versions.replace(dispatcher, "dispatch")
    versions.wait_for_steps(2)
    assert not any(isinstance(order, TaskBatch) for order in versions.orders())
    last = versions.num_steps() + final_steps
    trainer = versions.replace(trainer, "train", "--amend", f"run.num_steps={last}")
    versions.hurry()
    statuses = [process.wait(patience_seconds) for process in (trainer, dispatcher, *workers.values())]
    assert statuses == [0, 0, 0, 0]

    assert versions.num_steps() == last
    assert any(isinstance(order, TaskBatch) for order in versions.orders())
    assert "audit: nothing is off" in versions.told("this", "audit", run, "--head", found[1])
    assert f"EQUAL: {last} step(s) replayed" in versions.told("this", "replay", run)
