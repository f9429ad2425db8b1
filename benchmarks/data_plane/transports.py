"""Samples of 9 KB from a process that writes to one that reads, by every way of `benchmarks.data_plane.ways`.

Each process says how much processor time it has used between the first sample and the last, threads of its libraries
included; that of brokers and relays is not counted. What serialising costs is measured in the same process afterwards,
alone; the rest is transport. The ways are timed in turns, so that all see the same machine.
"""

from __future__ import annotations

import multiprocessing
import random
import socket
import statistics
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from benchmarks.data_plane.samples import Size, a_sample
from benchmarks.data_plane.ways import Place, relay, topic, ways
from benchmarks.harness.figures import Figure
from rollog.kernel.broker.ports import TopicSpec
from rollog.kernel.errors import ChildFailed

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from multiprocessing.context import SpawnContext

    from benchmarks.data_plane.ways import Way
    from benchmarks.harness.own_kafka import OwnKafka

    Together = tuple[Any, Any]
    """A barrier at which both sides begin, and a queue for what they have used."""

target_microseconds = 76.0
target_rate = 16_000.0
target_share = 0.01
nine_kilobytes = Size(prompt_tokens=160, response_tokens=880, words=72)
_num_layers, _width = 10, 640
"""A decoder of 12 x 10 x 640 x 640 = 49 million parameters, its vocabulary apart."""
_timeout_seconds = 300.0


@dataclass(frozen=True, slots=True)
class Side:
    """What one process has used, by the wall clock and in microseconds of processor per sample."""

    began: float
    ended: float
    whole: float
    codec: float


@dataclass(frozen=True, slots=True)
class Passage:
    """Both sides of one round."""

    writer: Side
    reader: Side
    num_records: int

    @property
    def rate(self) -> float:
        """Samples per second, from the first one written to the last one read."""
        return self.num_records / (self.reader.ended - self.writer.began)

    @property
    def whole(self) -> float:
        """Microseconds of processor per sample on both sides."""
        return self.writer.whole + self.reader.whole


def measure_transports(num_records: int, num_rounds: int, seed: int, kafka: OwnKafka) -> list[Figure]:
    """Rates and processor time of every way, and their share of a step. Raises ChildFailed."""
    with kafka.broker.admin() as admin:
        admin.create_topics([TopicSpec(name=topic, num_partitions=2)])
    rounds = [
        {name: _passage(name, num_records, seed, kafka.address) for name in ways} for _ in range(num_rounds)
    ]
    figures = [figure for name in ways for figure in _figures(name, [passages[name] for passages in rounds])]
    step_seconds = sample_step_seconds()
    used = {figure.name: figure.value for figure in figures}
    return [
        *figures,
        Figure(
            name="data_plane.step_of_50m",
            value=step_seconds,
            unit="s of one core per sample, forward and backward",
            higher_is_better=False,
        ),
        *(
            Figure(
                name=f"data_plane.{name}.share_of_step",
                value=used[f"data_plane.{name}.processor"] / 1e6 / step_seconds,
                unit="of a step of a model of 50 million parameters",
                target=target_share,
                higher_is_better=False,
            )
            for name in ("confluent", "auto", "kafka_python")
        ),
    ]


def _figures(name: str, passages: Sequence[Passage]) -> list[Figure]:
    def median(value: Callable[[Passage], float]) -> float:
        return statistics.median(map(value, passages))

    has_target = name in {"confluent", "auto"}
    parts: dict[str, Callable[[Passage], float]] = {
        "encode": lambda each: each.writer.codec,
        "decode": lambda each: each.reader.codec,
        "sending": lambda each: each.writer.whole - each.writer.codec,
        "receiving": lambda each: each.reader.whole - each.reader.codec,
    }
    return [
        Figure(
            name=f"data_plane.{name}.rate",
            value=median(lambda each: each.rate),
            unit="samples/s",
            target=target_rate if has_target else None,
        ),
        Figure(
            name=f"data_plane.{name}.processor",
            value=median(lambda each: each.whole),
            unit="us/sample, both sides",
            target=target_microseconds if has_target else None,
            higher_is_better=False,
        ),
        *(
            Figure(
                name=f"data_plane.{name}.{part}",
                value=median(value),
                unit="us/sample",
                higher_is_better=False,
            )
            for part, value in parts.items()
        ),
    ]


def _passage(name: str, num_records: int, seed: int, kafka_address: str) -> Passage:
    context = multiprocessing.get_context("spawn")
    place = Place(kafka_address, f"tcp://127.0.0.1:{_free_port()}", context.Queue())
    relaying = context.Process(target=relay, args=(place,), daemon=True)
    if ways[name].has_relay:
        relaying.start()
    try:
        writer, reader = _both_sides(context, name, place, num_records, seed)
    finally:
        if ways[name].has_relay:
            relaying.kill()
            relaying.join()
    return Passage(writer, reader, num_records)


def _both_sides(
    context: SpawnContext, name: str, place: Place, num_records: int, seed: int
) -> tuple[Side, Side]:
    results = context.Queue()
    arguments = (name, place, num_records, seed, (context.Barrier(2), results))
    sides = [context.Process(target=side, args=arguments, daemon=True) for side in (_write, _read)]
    for side in sides:
        side.start()
    try:
        found = dict(results.get(timeout=_timeout_seconds) for _ in sides)
        for side in sides:
            side.join(_timeout_seconds)
    except Exception as error:
        raise ChildFailed(f"no samples came through {name} in {_timeout_seconds:.0f} s") from error
    finally:
        for side in sides:
            side.kill()
    return found["writer"], found["reader"]


def _messages(way: Way, num_records: int, seed: int) -> list[list[Any]]:
    noise = random.Random(seed)
    # As many samples as a batch has; what they hold makes no difference to those that carry them.
    few = [way.prepared(a_sample(number, noise, nine_kilobytes)) for number in range(64 * 4)]
    held = [few[number % len(few)] for number in range(num_records)]
    return [held[at : at + way.size] for at in range(0, num_records, way.size)]


def _write(name: str, place: Place, num_records: int, seed: int, together: Together) -> None:
    barrier, results = together
    way = ways[name]
    messages = _messages(way, num_records, seed)
    way.dumps(messages[0])  # what is read and compiled once for a process is no part of the time
    with way.writer(place) as write:
        barrier.wait(_timeout_seconds)
        began, used = time.time(), time.process_time()
        for message in messages:
            write(way.dumps(message))
    whole, ended = time.process_time() - used, time.time()
    used = time.process_time()
    for message in messages:
        way.dumps(message)
    codec = time.process_time() - used
    results.put(("writer", Side(began, ended, whole / num_records * 1e6, codec / num_records * 1e6)))


def _read(name: str, place: Place, num_records: int, seed: int, together: Together) -> None:
    barrier, results = together
    way = ways[name]
    messages = _messages(way, num_records, seed)
    num_left = len(messages)
    # Once, as its writer does; headers are not read.
    written = way.dumps(messages[0])
    way.loads(written[0] if isinstance(written, tuple) else written)
    received: list[Any] = []
    with way.reader(place) as read:
        barrier.wait(_timeout_seconds)
        began, used = time.time(), time.process_time()
        for message in read():
            way.loads(message)
            if len(received) < num_left // 4:
                received.append(message)
            num_left -= 1
            if not num_left:
                break
        whole, ended = time.process_time() - used, time.time()
        used = time.process_time()
        for message in received:
            way.loads(message)
        codec = (time.process_time() - used) / max(1, len(received)) / way.size
    results.put(("reader", Side(began, ended, whole / num_records * 1e6, codec * 1e6)))


def sample_step_seconds() -> float:
    """Processor seconds that training takes on one such sample, forward and backward, on one core here."""
    import torch  # noqa: PLC0415 - the other processes do without

    torch.set_num_threads(1)
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(_width, 10, 4 * _width, dropout=0.0, batch_first=True)
    model = torch.nn.TransformerEncoder(layer, _num_layers)
    num_tokens = nine_kilobytes.prompt_tokens + nine_kilobytes.response_tokens
    inputs = torch.randn(1, num_tokens, _width)
    durations = []
    for _ in range(2):
        began = time.process_time()
        model(inputs).square().mean().backward()
        durations.append(time.process_time() - began)
    return min(durations)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
