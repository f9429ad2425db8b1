"""What the data plane costs: Sample records of about 6 KB through rollog's port, against raw kafka-python.

One process sends N records and then reads them back, on the embedded Apache Kafka, in turns: `ours` encodes a Sample,
sends it through the broker port, polls it and decodes it; `raw` sends ready bytes with kafka-python and polls them;
`avro` is raw with nothing but fastavro's own writer and reader between ready dicts and bytes. All use the same client
settings and put the same bytes on the wire. The figure is the ratio of the rates of ours and raw in the same run; its
target is 0.7, and its ideal is the ratio of avro and raw: what is left if everything but fastavro cost nothing.

`ours` with samples as short as the demo's gives the share of a demo step spent on carrying its samples: their number
and the seconds of a step come from what `benchmarks/demo/demo.py` saved, perhaps on another machine.

    python -m benchmarks.data_plane [--records 6000] [--rounds 7] [--seed 0] [--json FILE] [--results FILE]
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import statistics
import tempfile
import time
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from fastavro import schemaless_reader, schemaless_writer
from kafka import KafkaConsumer, KafkaProducer
from kafka import TopicPartition as KafkaTopicPartition

from benchmarks.harness.figures import Figure, write_figures, write_results
from rollog.kernel.broker.embedded import EmbeddedKafka
from rollog.kernel.broker.embedded_jars import kafka_version
from rollog.kernel.broker.kafka import KafkaBroker
from rollog.kernel.broker.kafka_settings import (
    ConnectionSettings,
    consumer_settings,
    producer_settings,
)
from rollog.kernel.broker.ports import TopicPartition, TopicSpec
from schemas import (
    FinishReason,
    Kind,
    Sample,
    Segment,
    Status,
    float32_array,
    int32_array,
    sample_id,
    uint8_array,
)
from schemas.catalogue import load_catalogue
from schemas.codec import decode, encode
from schemas.conversion import record_conversion
from schemas.headers import headers_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rollog.kernel.broker.ports import Headers

topic = "data-plane"
target_ratio = 0.7
demo_results = Path(__file__).parent / "results" / "demo.json"


@dataclass(frozen=True, slots=True)
class Size:
    """Of a sample, in tokens and words."""

    prompt_tokens: int
    response_tokens: int
    words: int


large = Size(prompt_tokens=80, response_tokens=580, words=72)
small = Size(prompt_tokens=6, response_tokens=11, words=11)
"""As long as the demo's: its prompts, and the mean of the responses it trains."""


@dataclass(frozen=True, slots=True)
class Rate:
    """Seconds of one round."""

    send_seconds: float
    read_seconds: float

    def records_per_second(self, num_records: int) -> float:
        """Records sent and read back per second."""
        return num_records / (self.send_seconds + self.read_seconds)


def a_sample(number: int, noise: random.Random, size: Size = large) -> Sample:
    """A finished sample; a large one has about 6 KB."""
    length = size.response_tokens
    return Sample(
        sample_id=sample_id(number, 0, 0),
        task_id=f"1.{number}",
        kind=Kind.TRAINING,
        status=Status.FINISHED,
        epoch=1,
        grant_id="1.1",
        worker_id="rollout-0123456789abcdef",
        group_id=number,
        replica=0,
        attempt=0,
        prompt_id=str(number),
        seed=number,
        prompt_token_ids=int32_array([noise.randrange(32000) for _ in range(size.prompt_tokens)]),
        token_ids=int32_array([noise.randrange(32000) for _ in range(length)]),
        behaviour_logprobs=float32_array([-noise.random() for _ in range(length)]),
        loss_mask=uint8_array(np.ones(length)),
        segments=(Segment(version=3, weights_digest="0123456789abcdef", start=0, end=length),),
        response_text=" ".join(["and"] * size.words),
        reward=1.0,
        reward_components={"correct": 1.0},
        finish_reason=FinishReason.STOP,
    )


def ours(broker: KafkaBroker, samples: Sequence[Sample]) -> Rate:
    """Encode, send, poll, decode."""
    place = TopicPartition(topic, 0)
    with broker.consumer(client_id="ours") as consumer, broker.producer(client_id="ours") as producer:
        begin = consumer.end_offsets([place])[place]
        consumer.assign({place: begin})
        started = time.perf_counter()
        for sample in samples:
            producer.send(topic, 0, encode(sample), headers=headers_of(sample))
        producer.flush(60.0)
        sent = time.perf_counter()
        num_read = 0
        while num_read < len(samples):
            for record in consumer.poll(1.0):
                decode(record.value or b"")
                num_read += 1
        return Rate(sent - started, time.perf_counter() - sent)


def raw(
    connection: ConnectionSettings,
    items: Sequence[tuple[Any, Headers]],
    write: Callable[[Any], bytes],
    read: Callable[[bytes], object],
) -> Rate:
    """Send and poll with kafka-python itself; `write` and `read` stand between the items and their bytes."""
    place = KafkaTopicPartition(topic, 0)
    consumer: Any = KafkaConsumer(**consumer_settings(connection, "raw", None))
    producer: Any = KafkaProducer(**producer_settings(connection, "raw"))
    try:
        consumer.assign([place])
        consumer.seek(place, consumer.end_offsets([place])[place])
        started = time.perf_counter()
        for item, headers in items:
            producer.send(topic, value=write(item), headers=headers, partition=0)
        producer.flush(60.0)
        sent = time.perf_counter()
        num_read = 0
        while num_read < len(items):
            for records in consumer.poll(timeout_ms=1000).values():
                for record in records:
                    read(record.value)
                num_read += len(records)
        return Rate(sent - started, time.perf_counter() - sent)
    finally:
        producer.close()
        consumer.close()


def ready_bytes(connection: ConnectionSettings, values: Sequence[tuple[bytes, Headers]]) -> Rate:
    """kafka-python alone."""
    return raw(connection, values, lambda value: value, lambda value: value)


def bare_avro(connection: ConnectionSettings, items: Sequence[tuple[dict[str, Any], Headers]]) -> Rate:
    """kafka-python and fastavro, and nothing of rollog."""
    schema = load_catalogue().current[Sample.__name__].parsed

    def write(item: dict[str, Any]) -> bytes:
        buffer = BytesIO()
        schemaless_writer(buffer, schema, item)
        return buffer.getvalue()

    return raw(connection, items, write, lambda value: schemaless_reader(BytesIO(value), schema))


def per_record_microseconds(samples: Sequence[Sample]) -> tuple[float, float]:
    """Encode and decode alone."""
    started = time.perf_counter()
    values = [encode(sample) for sample in samples]
    encoded = time.perf_counter()
    for value in values:
        decode(value)
    decoded = time.perf_counter()
    return (encoded - started) / len(samples) * 1e6, (decoded - encoded) / len(samples) * 1e6


def measure(num_records: int, num_rounds: int, seed: int, cache: Path) -> list[Figure]:
    """All figures of one run."""
    noise = random.Random(seed)
    samples = [a_sample(number, noise) for number in range(num_records)]
    values = [(encode(sample), headers_of(sample)) for sample in samples]
    to_avro, _ = record_conversion(Sample)
    dicts = [(to_avro(sample), headers_of(sample)) for sample in samples]
    short = [a_sample(number, noise, small) for number in range(num_records)]
    gc.collect()
    gc.freeze()  # no role has so much in memory for the collector to look through
    with tempfile.TemporaryDirectory() as directory, EmbeddedKafka(Path(directory), cache) as kafka:
        connection = ConnectionSettings(bootstrap_servers=kafka.address)
        broker = KafkaBroker(kafka.address)
        with broker.admin() as admin:
            admin.create_topics([TopicSpec(name=topic, num_partitions=1)])
        rounds = [
            (
                ours(broker, samples),
                ready_bytes(connection, values),
                bare_avro(connection, dicts),
                ours(broker, short),
            )
            for _ in range(num_rounds + 1)
        ][1:]  # the first one warms up
    mine, bare, avro, mine_short = (
        [each.records_per_second(num_records) for each in mode] for mode in zip(*rounds, strict=True)
    )
    ratios = [ours / raw for ours, raw in zip(mine, bare, strict=True)]
    ideal = statistics.median(avro / raw for avro, raw in zip(avro, bare, strict=True))
    encode_us, decode_us = per_record_microseconds(samples)
    return [
        Figure(
            name="data_plane.ratio",
            value=statistics.median(ratios),
            unit="ours / raw",
            target=target_ratio,
            ideal=ideal,
        ),
        Figure(name="data_plane.ratio_min", value=min(ratios), unit="ours / raw"),
        Figure(name="data_plane.ratio_max", value=max(ratios), unit="ours / raw"),
        Figure(name="data_plane.ours", value=statistics.median(mine), unit="records/s"),
        Figure(name="data_plane.raw", value=statistics.median(bare), unit="records/s"),
        Figure(name="data_plane.avro", value=statistics.median(avro), unit="records/s"),
        Figure(name="data_plane.encode", value=encode_us, unit="us/record", higher_is_better=False),
        Figure(name="data_plane.decode", value=decode_us, unit="us/record", higher_is_better=False),
        Figure(name="data_plane.record", value=len(values[0][0]), unit="bytes"),
        Figure(name="data_plane.demo_record", value=len(encode(short[0])), unit="bytes"),
        Figure(name="data_plane.demo_ours", value=statistics.median(mine_short), unit="records/s"),
        Figure(
            name="data_plane.share_of_demo_step",
            value=share_of_demo_step(statistics.median(mine_short)),
            unit="of a step",
            higher_is_better=False,
        ),
    ]


def share_of_demo_step(records_per_second: float) -> float:
    """What part of a step of the demo its samples' way through the log takes, evaluations apart."""
    runs = json.loads(demo_results.read_text(encoding="utf-8"))["runs"]
    samples_per_step = statistics.fmean(run["samples_produced"] / run["steps"] for run in runs)
    step_seconds = statistics.fmean(run["step_seconds"]["total"] for run in runs)
    return samples_per_step / records_per_second / step_seconds


def main() -> None:
    """Measure, print, save."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--records", type=int, default=6000)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--cache", type=Path, default=Path(".rollog/cache"))
    parser.add_argument("--json", type=Path, help="write the figures here")
    parser.add_argument(
        "--results", type=Path, help="write date, machine, versions, command and figures here"
    )
    arguments = parser.parse_args()
    figures = measure(arguments.records, arguments.rounds, arguments.seed, arguments.cache)
    for each in figures:
        print(each.line())
    if arguments.json:
        write_figures(figures, arguments.json)
    if arguments.results:
        command = f"python -m benchmarks.data_plane --records {arguments.records} --rounds {arguments.rounds}"
        write_results(
            figures,
            arguments.results,
            command=f"{command} --seed {arguments.seed}",
            kafka_version=kafka_version,
        )


if __name__ == "__main__":
    main()
