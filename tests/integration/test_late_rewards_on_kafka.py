"""Late rewards on real Kafka: roles as processes, a scorer beside them, and a trainer that is killed."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest
from support.late_scorer import first_valid, rewards_named
from support.threaded_run import small_settings
from support.waiting import wait_until

from consumers.archive import WeightsChoice, export_archive
from consumers.audit.auditor import audit_run
from consumers.ledger import read_ledger
from producers.rewards.late import late_rewards
from rollog.kernel.broker.archive import ArchiveBroker
from rollog.kernel.broker.ports import TopicPartition
from rollog.kernel.broker.reading import read_to_end
from rollog.kernel.broker.topics import RunTopics
from rollog.kernel.weights import WeightsStore
from rollog.run.creation import create_run
from schemas import Disposition, LedgerKind, Reward, Sample, Status
from schemas.codec import decode_as

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from producers.rewards.late import LateRewards
    from rollog.kernel.broker.kafka import KafkaBroker
    from schemas import LedgerRecord

pytestmark = [
    pytest.mark.broker,
    pytest.mark.engine,
    pytest.mark.slow,
    pytest.mark.timeout(1800),
    # Reads the log often, each time through a new client of kafka-python, which on a busy machine is closed while a
    # connection of its own is still being made, and leaves that socket to the garbage collector.
    pytest.mark.filterwarnings(r"ignore:unclosed <socket\.socket:ResourceWarning"),
]

patience_seconds = 900.0
num_steps = 6
program = [sys.executable, "-m", "rollog.cli.main"]


def role(directory: Path, *words: str) -> subprocess.Popen[bytes]:
    """One role in a process of its own, whose log is named after it."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("ROLLOG_")}
    path = os.pathsep.join(path for path in sys.path if path)
    with (directory / f"{words[0]}.log").open("ab") as output:
        return subprocess.Popen(
            [*program, *words], stdout=output, stderr=subprocess.STDOUT, env=kept | {"PYTHONPATH": path}
        )


class Scorer:
    """Reads finished samples, and scores them later, in any order: some twice, some never."""

    def __init__(self, broker: KafkaBroker, topics: RunTopics, rewards: LateRewards) -> None:
        self._consumer = broker.consumer(client_id="scorer")
        self._consumer.assign({TopicPartition(topics.samples, number): 0 for number in range(2)})
        self._rewards = rewards
        self._random = random.Random(5)
        self._due: list[Sample] = []
        self.num_missing = self.num_doubled = 0

    def turn(self) -> None:
        for record in self._consumer.poll(0.05):
            sample = decode_as(Sample, record.value or b"")
            if sample.awaits_reward and sample.status is Status.FINISHED:
                assert sample.reward is None
                self._due.append(sample)
        self._random.shuffle(self._due)
        while len(self._due) > self._random.randint(0, 6):
            self._score(self._due.pop())
        self._rewards.flush()

    def _score(self, sample: Sample) -> None:
        value = len(set(sample.token_ids.tolist())) + 0.01 * sample.replica
        if self._random.random() < 0.04:
            self.num_missing += 1
            return
        self._rewards.send(sample.sample_id, value, components={"tokens": float(sample.num_tokens)})
        if self._random.random() < 0.3:
            self.num_doubled += 1
            self._rewards.send(sample.sample_id, value + 100)

    def close(self) -> None:
        self._consumer.close()


def ledger_of(broker: KafkaBroker, topics: RunTopics) -> list[LedgerRecord]:
    return [entry.record for entry in read_ledger(broker, topics)]


@pytest.fixture
def processes() -> Iterator[list[subprocess.Popen[bytes]]]:
    started: list[subprocess.Popen[bytes]] = []
    yield started
    for process in started:
        process.kill()
        process.wait(30)


def test_a_killed_trainer_takes_late_rewards_up_again_and_a_replay_is_equal(
    kafka_broker: KafkaBroker,
    tmp_path: Path,
    run_topics: RunTopics,
    processes: list[subprocess.Popen[bytes]],
) -> None:
    name = run_topics.run
    topics = RunTopics("rollog", name)
    settings = small_settings(
        tmp_path,
        name,
        run={"prefix": "rollog", "num_steps": num_steps},
        reward={"function": None, "late": True, "deadline_seconds": 20.0},
        trainer={"num_minibatches": 2, "checkpoint_every_steps": 4, "engine": "torch"},
    )
    create_run(kafka_broker, settings)
    place = ("--run", name, "--broker", kafka_broker.address, "--home", str(tmp_path))
    processes += [role(tmp_path, words, *place) for words in ("dispatch", "rollout", "train")]
    num_kills = 0

    def finished() -> bool:
        nonlocal num_kills
        scorer.turn()
        ledger = ledger_of(kafka_broker, topics)
        version = ledger[-1].version if ledger else -1
        if num_kills < 2 and version >= 2 * num_kills + 1:
            num_kills += 1
            trainer = processes.pop()
            trainer.send_signal(signal.SIGKILL)
            trainer.wait(30)
            processes.append(role(tmp_path, "train", *place))
        assert all(process.poll() in (None, 0) for process in processes), tmp_path
        return bool(ledger) and ledger[-1].kind is LedgerKind.CLOSE

    with ExitStack() as opened:
        rewards = opened.enter_context(late_rewards(kafka_broker.address, run=name, scorer="test"))
        scorer = Scorer(kafka_broker, topics, rewards)
        opened.callback(scorer.close)
        wait_until(finished, patience_seconds, message=f"the end of the run; logs in {tmp_path}")
    assert num_kills == 2
    assert scorer.num_doubled > 0
    check_run(kafka_broker, topics, tmp_path)
    replay = [*program, "replay", name, "--broker", kafka_broker.address, "--home", str(tmp_path)]
    done = subprocess.run(replay, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr


def check_run(broker: KafkaBroker, topics: RunTopics, directory: Path) -> None:
    """The audit is clean, of the topics and of an archive of them; what is trained has its first valid reward."""
    store = WeightsStore((directory / "weights").as_uri())
    archive = directory / "run.zip"
    export_archive(broker, topics, store, archive, weights=WeightsChoice.ALL)
    for source in (broker, ArchiveBroker(archive)):
        report = audit_run(source, topics, store)
        assert report.is_clean, "\n".join(report.lines())
        assert next(check for check in report.checks if check.name == "I17").num_checked > 0
    samples: dict[tuple[int, int], Sample] = {}
    stored: dict[str, list[tuple[int, Reward]]] = {}
    with broker.consumer(client_id="check") as consumer:
        for record in read_to_end(consumer, topics.samples, 0, 1):
            samples[(record.partition, record.offset)] = decode_as(Sample, record.value or b"")
        for record in read_to_end(consumer, topics.rewards, 0):
            reward = decode_as(Reward, record.value or b"")
            stored.setdefault(reward.sample_id, []).append((record.offset, reward))
    ledger = ledger_of(broker, topics)
    named = rewards_named(ledger)
    trained = [
        verdict
        for record in ledger
        for verdict in record.verdicts
        if verdict.disposition is Disposition.TRAINED
    ]
    assert len(trained) == num_steps * 2 * 4
    for verdict in trained:
        sample = samples[(verdict.partition, verdict.offset)]
        assert named[verdict.sample_id] == first_valid(stored[verdict.sample_id], sample)
