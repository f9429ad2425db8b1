"""Thousands of mutated records among those of a whole run: no role ends by them, and nothing is off afterwards.

The real dispatcher, worker sessions and trainer in simulated time, killed now and then so that they read the mutants
again."""

from __future__ import annotations

import random
from collections import Counter, deque
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import pytest
from support.mutants import Mutants
from support.simulated_plan import Plan, max_workers, num_partitions
from support.simulated_run import SimulatedRun

from consumers.audit.auditor import audit_run
from consumers.audit.findings import Place
from consumers.ledger import read_ledger
from rollog.kernel.broker.ports import TopicPartition
from rollog.kernel.weights import WeightsStore
from schemas import Close, DispatcherEpoch, Disposition, TrainerEpoch
from schemas.codec import SchemaError, decode

if TYPE_CHECKING:
    from support.run_auditor import RunAuditor

    from rollog.kernel.broker.ports import Record
    from rollog.settings.run import BrokerConfig

num_mutants = 2_500
"""Of each of the runs."""
mutants_of_a_round = 9
impossible_of_a_round = 2
looks_between_reads = 5


class Onlooker:
    """Stands in for the auditor of simulated runs, which takes every record for one of the run's own."""

    def __init__(self, run: SimulatedRun) -> None:
        self._run = run
        self._num_looks = 0
        self.end_offsets: tuple[int, ...] | None = None

    def look(self) -> None:
        self._num_looks += 1
        if self._num_looks % looks_between_reads == 0:
            for entry in read_ledger(self._run.broker, self._run.topics):
                if isinstance(entry.record.body, Close):
                    self.end_offsets = entry.record.body.end_offsets


class GoodRecords:
    """The newest records of tasks, samples and workers that are no mutants, by topic."""

    def __init__(self, run: SimulatedRun) -> None:
        topics = {
            run.topics.tasks: max_workers,
            run.topics.samples: num_partitions,
            run.topics.workers: 1,
            run.topics.control: 1,
        }
        self._run = run
        self.mutants: set[bytes] = set()
        self.newest: dict[str, deque[Record]] = {topic: deque(maxlen=30) for topic in topics}
        self.num_places = topics
        self._consumer = run.broker.consumer(client_id="good")
        places = [TopicPartition(topic, number) for topic, count in topics.items() for number in range(count)]
        self._consumer.assign(dict.fromkeys(places, 0))

    def read(self) -> None:
        for record in self._consumer.poll(0.0):
            if record.value and record.value not in self.mutants and _is_record(record.value):
                self.newest[record.topic].append(record)

    def places_of_mutants(self) -> set[Place]:
        """Where in `samples` mutants stand, and nothing that a worker or dispatcher wrote."""
        topic = self._run.topics.samples
        places = [TopicPartition(topic, number) for number in range(self.num_places[topic])]
        with self._run.broker.consumer(client_id="places") as consumer:
            consumer.assign(dict.fromkeys(places, 0))
            return {
                Place(record.topic, record.partition, record.offset)
                for record in consumer.poll(0.0)
                if record.value in self.mutants
            }


def _is_record(value: bytes) -> bool:
    try:
        decode(value)
    except SchemaError:
        return False
    return True


def _names_an_epoch(value: bytes) -> bool:
    return _is_record(value) and isinstance(decode(value), DispatcherEpoch | TrainerEpoch)


class ManyMutants(Plan):
    """A plan that any number of dead letters in a row does not stop."""

    @property
    def broker(self) -> BrokerConfig:
        return super().broker.model_copy(update={"max_dead_letters_in_a_row": num_mutants})


@dataclass
class MutatedRun(SimulatedRun):
    """A simulated run that any number of dead letters does not stop."""

    num_sent: Counter[str] = field(default_factory=Counter)
    num_impossible: Counter[str] = field(default_factory=Counter)

    def _where_it_stands(self) -> str:
        return "no end in sight"

    def look(self) -> None:
        """See whether the run is closed; workers may well hold what no dispatcher gave them."""
        self.auditor.look()

    def send_mutants(self, mutants: Mutants, good: GoodRecords, number: int) -> None:
        """So many of one of the three topics, each in a place where a good one stands."""
        good.read()
        topic = mutants.draw.choice(sorted(good.newest))
        for _ in range(number if good.newest[topic] else 0):
            record = mutants.draw.choice(good.newest[topic])
            # What of control can be decoded and may well be is a dispatcher's: it does what it says.
            mutated = mutants.damaged if topic == self.topics.control else mutants.value
            value = mutated(record.value or b"")
            while topic == self.topics.control and _names_an_epoch(value):
                # A bit can make the epoch of another dispatcher or trainer of it, which rightly ends the one at work.
                value = mutated(record.value or b"")
            good.mutants.add(value)
            place = mutants.draw.choice(
                [record.partition] * 3 + [mutants.draw.randrange(good.num_places[topic])]
            )
            headers = mutants.headers(list(record.headers))
            self.hand.send(topic, place, value, key=record.key, headers=headers)
            self.num_sent[topic] += 1

    def send_impossible(self, mutants: Mutants, good: GoodRecords, number: int) -> None:
        """So many records that are well-formed and cannot be, on each of the four topics in turn."""
        good.read()
        for count in range(number):
            topic = sorted(good.newest)[count % len(good.newest)]
            if not good.newest[topic]:
                continue
            record = mutants.draw.choice(good.newest[topic])
            partition, value, headers = mutants.impossible(record, num_partitions)
            good.mutants.add(value)
            self.hand.send(topic, partition, value, key=record.key, headers=headers)
            self.num_impossible[topic] += 1

    def suffer(self, draw: random.Random) -> None:
        """Now and then a process dies and its successor reads everything anew."""
        if draw.random() < 0.02:
            self.kill_dispatcher()
        if draw.random() < 0.02:
            self.kill_trainer()
        if draw.random() < 0.03:
            self.kill_worker(draw.randrange(9), arrives=draw.random() < 0.5)

    def end_soon(self) -> None:
        """Dispatcher and trainer come back with a last step that is near."""
        versions = [entry.record.version for entry in read_ledger(self.broker, self.topics)]
        self.plan = replace(self.plan, num_steps=versions[-1] + 3)
        self.kill_dispatcher()
        self.kill_trainer()


@pytest.mark.parametrize(
    "seed", [*range(2), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 8))]
)
def test_thousands_of_mutants_stop_nobody_and_are_all_accounted_for(
    seed: int,
) -> None:
    draw = random.Random(seed)
    mutants = Mutants(draw)
    with MutatedRun(ManyMutants(num_steps=100_000)) as run:
        onlooker: RunAuditor = Onlooker(run)  # type: ignore[assignment]  # what of it such a run needs
        run.auditor = onlooker
        good = GoodRecords(run)
        while run.num_sent.total() < num_mutants:
            run.calm_round()
            run.send_mutants(mutants, good, mutants_of_a_round)
            run.send_impossible(mutants, good, impossible_of_a_round)
            run.suffer(draw)
        assert min(run.num_sent.values()) > num_mutants // 6, run.num_sent
        assert run.num_impossible.total() > 500 or num_mutants < 2_500
        run.end_soon()
        run.come_to_the_end()
        report = audit_run(run.broker, run.topics, WeightsStore(run.trainer_settings.weights_uri))
    lines = "\n".join(report.lines())
    # Mutants that are well-formed stand under headers of the record they were made of: that is named, and nothing else.
    assert {check.name for check, _ in report.findings} <= {"headers"}, lines
    at_mutants = good.places_of_mutants()
    assert all(finding.place in at_mutants for _, finding in report.findings), lines
    assert report.is_closed
    assert report.samples.num_records == (
        report.samples.num_by_disposition.total() + report.samples.num_after_close
    ), lines
    assert report.samples.num_by_disposition[Disposition.DEAD] > num_mutants // 20, lines
    assert report.version > 3, lines
