"""The roles as processes, as in separate terminals: vLLM workers join, are stopped and killed on the way."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from typing import TYPE_CHECKING

import pytest
from support.threaded_run import small_settings
from support.waiting import wait_until

from consumers.ledger import read_ledger
from rollog.kernel.broker.reading import read_to_end
from rollog.kernel.broker.topics import RunTopics
from rollog.run.creation import create_run
from schemas import Disposition, LedgerKind, RolloutTask, Sample, Status, TaskBatch
from schemas.codec import decode

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from rollog.kernel.broker.kafka import KafkaBroker
    from schemas import LedgerRecord, Verdict

pytestmark = [pytest.mark.broker, pytest.mark.engine, pytest.mark.slow, pytest.mark.timeout(1800)]

patience_seconds = 600.0
num_steps, groups_per_batch, group_size = 40, 4, 4


class Terminals:
    """One run and the roles started for it, each as a process."""

    def __init__(self, broker: KafkaBroker, directory: Path, run: str) -> None:
        self._broker = broker
        self._directory = directory
        self._pace = directory / "slowly"
        self._processes: list[subprocess.Popen[bytes]] = []
        self.topics = RunTopics("rollog", run)
        settings = small_settings(
            directory,
            run,
            run={"prefix": "rollog", "num_steps": num_steps},
            groups={"groups_per_batch": groups_per_batch, "group_size": group_size},
            rollout={"engine": "vllm", "capacity": 8},
            reward={
                "function": "support.loop_rewards:even_words_at_a_pace",
                "num_processes": 1,
                "environment": ["ROLLOG_TEST_PACE"],
            },
        )
        self._pace.touch()
        create_run(broker, settings)

    def start(self, *words: str) -> subprocess.Popen[bytes]:
        """A role, in a process of its own."""
        place = ("--run", self.topics.run, "--broker", self._broker.address)
        command = [sys.executable, "-m", "rollog.cli.main", *words, *place, "--home", str(self._directory)]
        kept = {name: value for name, value in os.environ.items() if not name.startswith("ROLLOG_")}
        path = os.pathsep.join(path for path in sys.path if path)
        with self.log(words[-1]).open("ab") as output:
            process = subprocess.Popen(
                command,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=self._directory,
                env=kept | {"PYTHONPATH": path, "ROLLOG_TEST_PACE": str(self._pace)},
            )
        self._processes.append(process)
        return process

    def log(self, name: str) -> Path:
        return self._directory / f"{name}.log"

    def hurry(self) -> None:
        """From now on rewards cost no time."""
        self._pace.unlink()

    def samples(self) -> dict[tuple[int, int], Sample]:
        """Everything in `samples`, by place."""
        return {
            (partition, offset): sample
            for partition, offset, sample in self._records(self.topics.samples, 2)
            if isinstance(sample, Sample)
        }

    def tasks(self) -> list[RolloutTask]:
        """Each by itself, also where several were ordered in one record."""
        records = [record for _, _, record in self._records(self.topics.tasks, 3)]
        together = [task for record in records if isinstance(record, TaskBatch) for task in record.tasks]
        return [*together, *(record for record in records if isinstance(record, RolloutTask))]

    def ledger(self) -> list[LedgerRecord]:
        return [entry.record for entry in read_ledger(self._broker, self.topics)]

    def trained_workers(self) -> Counter[str]:
        """How many trained samples each worker incarnation has made."""
        samples = self.samples()
        trained = verdicts_of(self.ledger(), Disposition.TRAINED)
        made = [samples.get((verdict.partition, verdict.offset)) for verdict in trained]
        return Counter(sample.worker_id for sample in made if sample is not None)

    def wait_for_trained(self, name: str, known: set[str] | None = None) -> str:
        """Wait until samples of a worker of that name, none of `known`, have been trained; returns its identity."""

        def found() -> str | None:
            workers = set(self.trained_workers()) - (known or set())
            return next((worker for worker in workers if worker.startswith(name)), None)

        worker = wait_until(found, patience_seconds, f"trained samples of {name}; see {self.log(name)}")
        assert worker is not None
        return worker

    def close(self) -> None:
        for process in self._processes:
            process.kill()
            process.wait()

    def _records(self, topic: str, count: int) -> Iterator[tuple[int, int, object]]:
        with self._broker.consumer(client_id="reader") as consumer:
            for record in read_to_end(consumer, topic, *range(count)):
                yield record.partition, record.offset, decode(record.value or b"")


@pytest.fixture
def terminals(kafka_broker: KafkaBroker, tmp_path: Path, run_topics: RunTopics) -> Iterator[Terminals]:
    made = Terminals(kafka_broker, tmp_path, run_topics.run)
    yield made
    made.close()


def verdicts_of(ledger: list[LedgerRecord], disposition: Disposition) -> list[Verdict]:
    return [verdict for record in ledger for verdict in record.verdicts if verdict.disposition is disposition]


def check_nothing_lost(terminals: Terminals) -> None:
    """Every sample has one disposition, nothing is trained twice, and every group's place was filled or closed."""
    ledger = terminals.ledger()
    verdicts = [verdict for record in ledger for verdict in record.verdicts]
    assert sorted((verdict.partition, verdict.offset) for verdict in verdicts) == sorted(terminals.samples())
    trained = Counter(
        (verdict.group_id, verdict.replica) for verdict in verdicts_of(ledger, Disposition.TRAINED)
    )
    assert set(trained.values()) == {1}
    assert len(trained) == num_steps * groups_per_batch * group_size
    assert (ledger[-1].kind, ledger[-1].version) == (LedgerKind.CLOSE, num_steps)


def check_everyone_ends_again(terminals: Terminals) -> None:
    """Whoever is started for a run that is over leaves at once, also where the others were started with it."""
    ledger = terminals.ledger()
    started = {
        words[-1]: terminals.start(*words)
        for words in (("dispatch",), ("train",), ("rollout", "--name", "late"), ("watch", "--plain"))
    }
    assert {name: process.wait(patience_seconds) for name, process in started.items()} == dict.fromkeys(
        started, 0
    )
    assert terminals.ledger() == ledger


def test_workers_and_the_dispatcher_come_and_go_as_processes(terminals: Terminals) -> None:
    dispatcher = terminals.start("dispatch")
    trainer = terminals.start("train")
    first_process = terminals.start("rollout", "--name", "first")
    first = terminals.wait_for_trained("first")

    second_process = terminals.start("rollout", "--name", "second")
    second = terminals.wait_for_trained("second")

    first_process.kill()
    lost = wait_until(
        lambda: [sample for sample in terminals.samples().values() if sample.status is Status.LOST],
        patience_seconds,
        "tasks of the killed worker to be declared lost",
    )
    assert {sample.worker_id for sample in lost} == {first}
    again = {(sample.group_id, sample.replica, sample.attempt + 1) for sample in lost}
    wait_until(
        lambda: again <= {(task.group_id, task.replica, task.attempt) for task in terminals.tasks()},
        patience_seconds,
        f"lost rollouts to be ordered again: {sorted(again)}",
    )

    last_process = terminals.start("rollout", "--name", "first")
    terminals.wait_for_trained("first", known={first})
    second_process.send_signal(signal.SIGTERM)
    assert second_process.wait(patience_seconds) == 128 + signal.SIGTERM
    assert {sample.status for sample in terminals.samples().values() if sample.worker_id == second} <= {
        Status.FINISHED,
        Status.CANCELLED,
    }

    dispatcher.kill()
    dispatcher.wait()
    dispatcher = terminals.start("dispatch")
    terminals.hurry()

    statuses = [process.wait(patience_seconds) for process in (trainer, dispatcher, last_process)]
    assert statuses == [0, 0, 0]
    assert {task.epoch for task in terminals.tasks()} == {1, 2}
    check_nothing_lost(terminals)
    check_everyone_ends_again(terminals)
