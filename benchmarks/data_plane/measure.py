"""What the data plane costs: Sample records of about 6 KB through rollog's port, against raw kafka-python.

The figure is the ratio of the rates of ours and raw in the same run (`benchmarks.data_plane.round_trips`); its target
is 0.7, and its ideal is the ratio of bare Avro and raw: what is left if everything but fastavro cost nothing.

Ours with samples as short as the demo's gives the share of a demo step spent on carrying its samples: their number and
the seconds of a step come from the results of `python -m benchmarks.demo`, perhaps of another machine.
"""

from __future__ import annotations

import gc
import json
import random
import statistics
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.data_plane.round_trips import bare_avro, ours, ready_bytes, topic
from benchmarks.data_plane.samples import a_sample, small
from benchmarks.harness.figures import Figure
from rollog.kernel.broker.kafka_settings import ConnectionSettings
from rollog.kernel.broker.ports import TopicSpec
from schemas import Sample
from schemas.codec import decode, encode
from schemas.conversion import record_conversion
from schemas.headers import headers_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.harness.own_kafka import OwnKafka

target_ratio = 0.7
demo_results = Path(__file__).parents[1] / "demo" / "results" / "demo.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Records per second of each round, by way of carrying them."""

    ours: Sequence[float]
    raw: Sequence[float]
    avro: Sequence[float]
    short: Sequence[float]


def measure_data_plane(num_records: int, num_rounds: int, seed: int, kafka: OwnKafka) -> list[Figure]:
    """All figures."""
    noise = random.Random(seed)
    samples = [a_sample(number, noise) for number in range(num_records)]
    short = [a_sample(number, noise, small) for number in range(num_records)]
    rates = _rates(samples, short, num_rounds, kafka)
    return [*_ratios(rates), *_costs(samples), *_share_of_demo(short, rates)]


def _rates(samples: Sequence[Sample], short: Sequence[Sample], num_rounds: int, kafka: OwnKafka) -> Rates:
    values = [(encode(sample), headers_of(sample)) for sample in samples]
    to_avro, _ = record_conversion(Sample)
    dicts = [(to_avro(sample), headers_of(sample)) for sample in samples]
    gc.collect()
    gc.freeze()  # no role has so much in memory for the collector to look through
    connection = ConnectionSettings(bootstrap_servers=kafka.address)
    with kafka.broker.admin() as admin:
        admin.create_topics([TopicSpec(name=topic, num_partitions=1)])
    rounds = [
        (
            ours(kafka.broker, samples),
            ready_bytes(connection, values),
            bare_avro(connection, dicts),
            ours(kafka.broker, short),
        )
        for _ in range(num_rounds + 1)
    ][1:]  # the first one warms up
    by_way = [[each.records_per_second(len(samples)) for each in way] for way in zip(*rounds, strict=True)]
    return Rates(ours=by_way[0], raw=by_way[1], avro=by_way[2], short=by_way[3])


def _ratios(rates: Rates) -> list[Figure]:
    ratios = [ours / raw for ours, raw in zip(rates.ours, rates.raw, strict=True)]
    ideal = statistics.median(avro / raw for avro, raw in zip(rates.avro, rates.raw, strict=True))
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
        *(
            Figure(name=f"data_plane.{name}", value=statistics.median(getattr(rates, name)), unit="records/s")
            for name in ("ours", "raw", "avro")
        ),
    ]


def _costs(samples: Sequence[Sample]) -> list[Figure]:
    """Encode and decode alone."""
    started = time.perf_counter()
    values = [encode(sample) for sample in samples]
    encoded = time.perf_counter()
    for value in values:
        decode(value)
    decoded = time.perf_counter()
    microseconds = {
        "encode": (encoded - started) / len(samples) * 1e6,
        "decode": (decoded - encoded) / len(samples) * 1e6,
    }
    return [
        *(
            Figure(name=f"data_plane.{name}", value=value, unit="us/record", higher_is_better=False)
            for name, value in microseconds.items()
        ),
        Figure(name="data_plane.record", value=len(values[0]), unit="bytes"),
    ]


def _share_of_demo(short: Sequence[Sample], rates: Rates) -> list[Figure]:
    records_per_second = statistics.median(rates.short)
    return [
        Figure(name="data_plane.demo_record", value=len(encode(short[0])), unit="bytes"),
        Figure(name="data_plane.demo_ours", value=records_per_second, unit="records/s"),
        Figure(
            name="data_plane.share_of_demo_step",
            value=share_of_demo_step(records_per_second),
            unit="of a step",
            higher_is_better=False,
        ),
    ]


def share_of_demo_step(records_per_second: float) -> float:
    """What share of a step of the demo its samples' way through the log takes, evaluations apart."""
    runs = json.loads(demo_results.read_text(encoding="utf-8"))["runs"]
    samples_per_step = statistics.fmean(run["samples_produced"] / run["steps"] for run in runs)
    step_seconds = statistics.fmean(run["step_seconds"]["total"] for run in runs)
    return samples_per_step / records_per_second / step_seconds
