"""What reads a run, in a process of its own: `python -m benchmarks.growth.reading WHAT RUN --broker ... --home ...`.

The process does one of `readings` and prints, as its last line, how long that took and the most memory it has had.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from benchmarks.growth.run_settings import held_out, prefix, prompts
from benchmarks.harness.peak_memory import peak_bytes
from rollog.kernel.broker.kafka import KafkaBroker
from rollog.kernel.broker.topics import RunTopics
from rollog.kernel.logs import configure_logging

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_moment_seconds = 1.0
"""How long a role runs before it leaves in order; shorter than a lease, so that no grant is taken back."""
_read_seconds = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What one reading took: seconds, processor seconds, and the most memory of its process until then."""

    seconds: float
    cpu_seconds: float
    peak_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Which run, on which broker, with which state directory."""

    run: str
    address: str
    home: Path

    @property
    def broker(self) -> KafkaBroker:
        """A connection to it."""
        return KafkaBroker(self.address)

    @property
    def topics(self) -> RunTopics:
        """Of the run."""
        return RunTopics(prefix, self.run)


class Stopwatch:
    """Takes what a reading costs from when it is made, once."""

    def __init__(self) -> None:
        self._started = time.monotonic()
        self._cpu_before = time.process_time()
        self.cost: Cost | None = None

    def stop(self) -> None:
        """Here the reading ends; what the process does later does not count."""
        self.cost = Cost(
            seconds=time.monotonic() - self._started,
            cpu_seconds=time.process_time() - self._cpu_before,
            peak_bytes=peak_bytes(),
        )


def start_dispatcher(place: Place) -> Cost:
    """Until a dispatcher is ready; then it runs for a moment and leaves in order."""
    from producers.dispatcher.startup import TakeOver  # noqa: PLC0415  # each reading is to load its own alone
    from rollog.kernel.metrics import Metrics  # noqa: PLC0415
    from rollog.kernel.runs import find_run  # noqa: PLC0415
    from rollog.run.role_settings import dispatcher_settings  # noqa: PLC0415
    from rollog.settings.settings import Settings  # noqa: PLC0415

    broker = place.broker
    settings = Settings.from_manifest(find_run(broker, prefix, place.run).config_json)
    take_over = TakeOver(
        settings=dispatcher_settings(settings, place.home),
        broker=broker,
        metrics=Metrics(),
        dispatcher_id="growth",
        prompts=prompts(),
        held_out=held_out(),
    )
    watch = Stopwatch()
    with take_over.start() as dispatcher:
        watch.stop()
        dispatcher.run(_stopped_soon())
    return _taken(watch)


def start_trainer(place: Place) -> Cost:
    """Until a trainer with a simulated engine is ready; then it runs for a moment and leaves in order."""
    from rollog.kernel.metrics import Metrics  # noqa: PLC0415
    from rollog.kernel.runs import find_run  # noqa: PLC0415
    from rollog.run.role_settings import trainer_settings  # noqa: PLC0415
    from rollog.settings.settings import Settings  # noqa: PLC0415
    from trainer import startup  # noqa: PLC0415
    from trainer.engines.simulated import SimulatedTrainingEngine  # noqa: PLC0415

    broker = place.broker
    manifest = find_run(broker, prefix, place.run)
    settings = trainer_settings(Settings.from_manifest(manifest.config_json), manifest, place.home)
    watch = Stopwatch()
    with startup.start_trainer(settings, broker, Metrics(), SimulatedTrainingEngine()) as trainer:
        watch.stop()
        trainer.run(_stopped_soon())
    return _taken(watch)


def audit(place: Place) -> Cost:
    """`rollog audit`; something off in the run is an error here."""
    return _command(place, "audit", place.run)


def lineage(place: Place) -> Cost:
    """`rollog lineage` of one of the first samples, or of version 0 where there is none."""
    from rollog.kernel.broker.ports import TopicPartition  # noqa: PLC0415

    first = TopicPartition(place.topics.samples, 0)
    with place.broker.consumer(client_id="growth") as consumer:
        has_samples = consumer.end_offsets([first])[first] > 0
    asked = ("--sample", "g0.r0.a0") if has_samples else ("--version", "0")
    return _command(place, "lineage", place.run, *asked)


def prune(place: Place) -> Cost:
    """`rollog topics prune`, which only says what it would delete."""
    return _command(place, "topics", "prune", place.run, "--dry-run")


def watch(place: Place) -> Cost:
    """What `rollog watch` has read before it shows a run, and `rollog up` for its summary."""
    from consumers.progress import RunProgress  # noqa: PLC0415

    stopwatch = Stopwatch()
    with RunProgress(place.broker, place.topics) as progress:
        progress.read_to_end(_read_seconds)
    stopwatch.stop()
    return _taken(stopwatch)


def durations(place: Place) -> Cost:
    """What `rollog plan` reads of a run."""
    from consumers.durations import measure_durations  # noqa: PLC0415

    stopwatch = Stopwatch()
    measure_durations(place.broker, place.topics)
    stopwatch.stop()
    return _taken(stopwatch)


readings: Mapping[str, Callable[[Place], Cost]] = {
    "audit": audit,
    "lineage": lineage,
    "prune": prune,
    "watch": watch,
    "durations": durations,
    "dispatcher": start_dispatcher,
    "trainer": start_trainer,
}


def _command(place: Place, *words: str) -> Cost:
    from rollog.cli.main import cli  # noqa: PLC0415

    stopwatch = Stopwatch()
    options = ("--broker", place.address, "--home", str(place.home), "--set", f"run.prefix={prefix}")
    status = cli.main([*words, *options], prog_name="rollog", standalone_mode=False)
    stopwatch.stop()
    if status:
        sys.exit(status)
    return _taken(stopwatch)


def _stopped_soon() -> threading.Event:
    stop = threading.Event()
    timer = threading.Timer(_moment_seconds, stop.set)
    timer.daemon = True
    timer.start()
    return stop


def _taken(stopwatch: Stopwatch) -> Cost:
    assert stopwatch.cost is not None
    return stopwatch.cost


@click.command()
@click.argument("what", type=click.Choice(list(readings)))
@click.argument("run")
@click.option("--broker", "address", required=True)
@click.option("--home", type=click.Path(file_okay=False, path_type=Path), required=True)
def read(what: str, run: str, address: str, home: Path) -> None:
    """Do one reading of a run and print what it took."""
    configure_logging(level=os.environ.get("ROLLOG_LOG_LEVEL", "error"))
    cost = readings[what](Place(run=run, address=address, home=home))
    click.echo(json.dumps(asdict(cost)))


if __name__ == "__main__":
    read()
