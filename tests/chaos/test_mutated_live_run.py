"""Thousands of records that cannot be, on every topic of a run on the real broker: no role ends by them."""

from __future__ import annotations

import random
from collections import Counter, defaultdict, deque
from typing import TYPE_CHECKING

import pytest
from support.mutants import Mutants
from support.threaded_run import small_settings, whole_run

from rollog.kernel.broker.ports import TopicPartition
from rollog.kernel.broker.topics import runs_topic
from schemas import Disposition, LedgerKind
from schemas.codec import SchemaError, decode

if TYPE_CHECKING:
    from pathlib import Path

    from support.threaded_run import WholeRun

    from rollog.kernel.broker.kafka import KafkaBroker
    from rollog.kernel.broker.ports import Producer, Record
    from rollog.kernel.broker.topics import RunTopics

pytestmark = [pytest.mark.broker, pytest.mark.engine, pytest.mark.slow, pytest.mark.timeout(900)]

num_rounds = 20
mutants_of_a_round = 100
impossible_of_a_round = 25


class Vandal:
    """Writes mutants of the newest good records of every topic, in the places of good ones."""

    def __init__(self, run: WholeRun, seed: int) -> None:
        topics, broker = run.topics, run.settings.broker
        self.topics = {
            topics.tasks: broker.max_workers,
            topics.samples: broker.samples_partitions,
            topics.evaluations: broker.samples_partitions,
            topics.control: 1,
            topics.steps: 1,
            topics.weights: 1,
            topics.workers: 1,
            topics.dead_letters: 1,
            runs_topic(run.settings.run.prefix): 1,
        }
        self._control = topics.control
        self._num_samples = broker.samples_partitions
        self.num_sent: Counter[str] = Counter()
        self._mutants = Mutants(random.Random(seed))
        self._written: set[bytes] = set()
        self._good: defaultdict[str, deque[Record]] = defaultdict(lambda: deque(maxlen=30))
        places = [TopicPartition(name, number) for name, num in self.topics.items() for number in range(num)]
        self._consumer = run.broker.consumer(client_id="vandal")
        self._consumer.assign(self._consumer.beginning_offsets(places))

    def close(self) -> None:
        self._consumer.close()

    def read(self) -> None:
        while records := self._consumer.poll(0.2):
            for record in records:
                if record.value and record.value not in self._written and _is_record(record.value):
                    self._good[record.topic].append(record)

    def write(self, producer: Producer) -> None:
        """One round on every topic of which a good record is known."""
        self.read()
        for topic, partitions in self.topics.items():
            if not self._good[topic]:
                continue
            # What of control can be decoded and may well be is a dispatcher's: it does what it says.
            mutated = self._mutants.damaged if topic == self._control else self._mutants.value
            for _ in range(mutants_of_a_round):
                record = self._mutants.draw.choice(self._good[topic])
                place = self._mutants.draw.randrange(partitions)
                self._send(producer, record, place, mutated(record.value or b""))
            for _ in range(impossible_of_a_round):
                record = self._mutants.draw.choice(self._good[topic])
                place, value, _ = self._mutants.impossible(record, self._num_samples)
                self._send(producer, record, place, value)
        producer.flush(30.0)

    def _send(self, producer: Producer, record: Record, place: int, value: bytes) -> None:
        self._written.add(value)
        headers = self._mutants.headers(list(record.headers))
        producer.send(record.topic, place, value, key=record.key or b"k", headers=headers)
        self.num_sent[record.topic] += 1


def _is_record(value: bytes) -> bool:
    try:
        decode(value)
    except SchemaError:
        return False
    return True


def test_records_that_cannot_be_end_no_role_of_a_run_on_the_real_broker(
    kafka_broker: KafkaBroker, run_topics: RunTopics, tmp_path: Path
) -> None:
    settings = small_settings(
        tmp_path,
        run_topics.run,
        run={"num_steps": 100_000},
        broker={"samples_partitions": 2, "max_workers": 3, "max_dead_letters_in_a_row": 1_000_000},
        data={"held_out": str(tmp_path / "prompts.jsonl")},
        evaluation={"every_steps": 5, "num_prompts": 4, "sampled": False},
    )
    with whole_run(kafka_broker, tmp_path, settings) as run:
        roles = [run.dispatcher(), run.trainer(), run.worker()]
        vandal = Vandal(run, seed=0)
        with kafka_broker.producer(client_id="vandal") as producer:
            for number in range(num_rounds):
                run.wait_for_version(number + 1)
                vandal.write(producer)
                if number == num_rounds // 2:
                    # Those that start read all of it again.
                    for role in roles:
                        role.end()
                    roles = [run.dispatcher(), run.trainer(), run.worker()]
        vandal.close()
        # However fast it was meanwhile, it ends only now.
        roles[1].end()
        num_steps = run.ledger()[-1].version + num_rounds
        run.trainer(amendment={"run.num_steps": num_steps})
        ledger = run.wait_until_closed()
    wanted = (num_rounds - 1) * (mutants_of_a_round + impossible_of_a_round)
    assert all(num >= wanted for topic, num in vandal.num_sent.items()), vandal.num_sent
    assert vandal.num_sent.keys() >= vandal.topics.keys()
    assert ledger[-1].kind is LedgerKind.CLOSE
    assert ledger[-1].version == num_steps
    trained = [
        (verdict.group_id, verdict.replica)
        for record in ledger
        for verdict in record.verdicts
        if verdict.disposition is Disposition.TRAINED
    ]
    assert len(trained) == len(set(trained)) == num_steps * 2 * 4
