"""The benchmark of growth: what it fabricates is a run like others, and its figures are what was measured."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import click
import pytest
from support.altered_topics import RecordedTopics
from support.audited_run import findings, places

from benchmarks.growth.__main__ import growth
from benchmarks.growth.fabrication import fabricate, mishap_every_steps
from benchmarks.growth.figures import Measured, growth_figures
from benchmarks.growth.measure import order_of_readings
from benchmarks.growth.reading import Cost, readings
from benchmarks.growth.run_settings import group_size, held_out, prefix, prompts, samples_per_step
from benchmarks.harness.peak_memory import peak_bytes
from consumers.audit.auditor import audit_run
from producers.dispatcher.startup import TakeOver
from rollog.kernel.broker.memory import MemoryBroker
from rollog.kernel.broker.ports import TopicPartition
from rollog.kernel.broker.topics import run_topic_names
from rollog.kernel.metrics import Metrics
from rollog.kernel.runs import find_run
from rollog.kernel.weights import WeightsStore
from rollog.run.role_settings import dispatcher_settings, trainer_settings
from rollog.settings.settings import Settings
from trainer.engines.simulated import SimulatedTrainingEngine
from trainer.startup import start_trainer

if TYPE_CHECKING:
    from pathlib import Path

    from consumers.audit.report import AuditReport
    from rollog.kernel.broker.ports import Broker
    from rollog.kernel.broker.topics import RunTopics

num_steps = mishap_every_steps + 2
name = "fabricated"


@dataclass(frozen=True)
class Fabricated:
    """A run, and where its files are."""

    broker: Broker
    topics: RunTopics
    home: Path

    def audit(self, broker: Broker | RecordedTopics | None = None) -> AuditReport:
        store = WeightsStore(str(self.home / "weights" / name))
        return audit_run(broker or self.broker, self.topics, store, settles_within_seconds=0.0)

    @property
    def settings(self) -> Settings:
        return Settings.from_manifest(find_run(self.broker, prefix, name).config_json)

    def recorded(self) -> RecordedTopics:
        return RecordedTopics.copied(self.broker, run_topic_names(self.topics))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Fabricated:
    """Fabricated once, and only read."""
    return a_run(tmp_path_factory.mktemp("growth"))


def a_run(home: Path, steps: int = num_steps) -> Fabricated:
    broker = MemoryBroker()
    return Fabricated(broker, fabricate(broker, name, num_steps=steps, seed=0, home=home), home)


def test_nothing_is_off_in_a_fabricated_run_and_everything_in_it_is_checked(run: Fabricated) -> None:
    report = run.audit()
    assert report.is_clean, "\n".join(report.lines())
    assert report.version == num_steps
    assert not report.is_closed
    assert dict(report.samples.num_by_disposition) == {
        "trained": num_steps * samples_per_step,
        "filtered": group_size,
        "failed": 1,
    }
    assert report.samples.num_open > 0
    unchecked = {check.name for check in report.checks if check.num_unchecked}
    assert unchecked == {"I4 files"}
    idle = {check.name for check in report.checks if not check.num_checked}
    assert idle == {"end", "dead letters", "I11, I12", "I16"}


def test_an_altered_sample_and_a_missing_task_are_found_in_it(run: Fabricated) -> None:
    recorded = run.recorded()
    sample = recorded.all(run.topics.samples)[7]
    task = next(
        record
        for record in recorded.all(run.topics.tasks)
        if record.header("task_id") == sample.header("task_id")
    )
    altered = recorded.with_value(sample, (sample.value or b"")[:-1] + b"?")
    place = (sample.topic, sample.partition, sample.offset)
    assert places(findings(run.audit(altered), "digests")) == [place]
    assert places(findings(run.audit(recorded.without(task)), "origin")) == [place]


def test_an_empty_run_has_a_genesis_and_grants_alone(tmp_path: Path) -> None:
    empty = a_run(tmp_path, steps=0)
    report = empty.audit()
    assert report.is_clean
    assert (report.version, report.samples.num_records) == (0, 0)
    with empty.broker.consumer(client_id="test") as consumer:
        place = TopicPartition(empty.topics.samples, 0)
        assert consumer.end_offsets([place]) == {place: 0}


def test_roles_take_a_fabricated_run_over_where_it_stands(tmp_path: Path) -> None:
    run = a_run(tmp_path)
    manifest = find_run(run.broker, prefix, name)
    settings = trainer_settings(run.settings, manifest, run.home)
    with start_trainer(settings, run.broker, Metrics(), SimulatedTrainingEngine()) as trainer:
        trainer.run_once()
        assert trainer.ledger.version == num_steps
    take_over = TakeOver(
        settings=dispatcher_settings(run.settings, run.home),
        broker=run.broker,
        metrics=Metrics(),
        dispatcher_id="test",
        prompts=prompts(),
        held_out=held_out(),
    )
    with take_over.start() as dispatcher:
        assert dispatcher.state.ledger.version == num_steps
        assert len(dispatcher.state.credits) > 0
    report = run.audit()
    assert report.is_clean, "\n".join(report.lines())


def test_figures_are_what_a_size_takes_above_an_empty_run() -> None:
    empty = Cost(seconds=1.0, cpu_seconds=0.5, peak_bytes=50_000_000)
    found = [
        Measured(
            num_samples=size, cost=Cost(seconds=3.0, cpu_seconds=1.5, peak_bytes=size_bytes), empty=empty
        )
        for size, size_bytes in ((1_000, 51_000_000), (10_000, 60_000_000), (100_000, 105_000_000))
    ]
    figures = {figure.name: figure for figure in growth_figures({"audit": found})}
    assert figures["growth.samples_10000.audit.seconds"].value == 2.0
    assert figures["growth.samples_10000.audit.cpu_seconds"].value == 1.0
    assert figures["growth.samples_100000.audit.memory"].value == 55.0
    assert figures["growth.audit.bytes_per_sample"].value == 500.0
    assert figures["growth.audit.bytes_per_sample"].target == 600.0


def test_one_size_has_no_memory_of_one_more_sample() -> None:
    cost = Cost(seconds=1.0, cpu_seconds=1.0, peak_bytes=1)
    only = Measured(num_samples=100, cost=cost, empty=cost)
    assert not [figure for figure in growth_figures({"audit": [only]}) if "bytes_per_sample" in figure.name]


def test_roles_start_twice_and_after_everything_that_only_reads() -> None:
    names = [figure for figure, _ in order_of_readings()]
    assert names[-4:] == ["dispatcher", "trainer", "dispatcher_again", "trainer_again"]
    assert {what for _, what in order_of_readings()} == set(readings)
    assert order_of_readings({"trainer"}) == [("trainer", "trainer"), ("trainer_again", "trainer")]
    chosen = next(option for option in growth.params if option.name == "chosen")
    assert isinstance(chosen.type, click.Choice)
    assert set(chosen.type.choices) == set(readings)


def test_a_process_knows_the_most_memory_it_has_had() -> None:
    before = peak_bytes()
    held = bytearray(b"x") * (50 << 20)
    assert peak_bytes() > 0
    assert peak_bytes() >= before
    assert len(held) == 50 << 20
