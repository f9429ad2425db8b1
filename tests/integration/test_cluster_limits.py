"""Clusters that forbid large records or new topics: what is refused and why, and a run set up as the remedy says."""

from __future__ import annotations

import re
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from support.broker_suite import short_run_replays
from support.kafka_lines import KafkaNode, java_for, kafka_jars, lines
from support.threaded_run import small_settings
from support.topic_policy import compiled_policy, policy_settings

from rollog.kernel.broker.kafka import KafkaBroker
from rollog.kernel.errors import BrokerError, TopicMismatch
from rollog.run.creation import create_run, specs_of_run

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [pytest.mark.slow, pytest.mark.broker, pytest.mark.engine, pytest.mark.timeout(600)]

default_limit_bytes = 1_048_588
small_limit_bytes = 256 << 10


@contextmanager
def node(directory: Path, cache_directory: Path, settings: dict[str, str]) -> Iterator[KafkaBroker]:
    """A broker with further settings; a second one on the same directory has the topics of the first."""
    newest = lines[-1]
    jars = kafka_jars(newest, cache_directory)
    directory.mkdir(exist_ok=True)
    policy = compiled_policy(jars, directory)
    with KafkaNode(java_for(newest), [*jars, policy], directory, settings) as kafka:
        yield KafkaBroker(kafka.address)


@pytest.mark.parametrize("limit_bytes", [default_limit_bytes, small_limit_bytes])
def test_a_policy_that_limits_records_is_named_with_the_remedy_and_the_remedy_works(
    limit_bytes: int, tmp_path: Path, cache_directory: Path
) -> None:
    with node(tmp_path / "kafka", cache_directory, policy_settings(limit_bytes)) as broker:
        with pytest.raises(BrokerError) as refused:
            create_run(broker, small_settings(tmp_path, "refused"))
        said = str(refused.value)
        for word in ("rollog-test.refused.tasks", "max.message.bytes = 16777216", f"at most {limit_bytes}"):
            assert word in said
        check_remedy_works(broker, tmp_path, said)


def check_remedy_works(broker: KafkaBroker, home: Path, said: str) -> None:
    """What the message says, with every sample an object of the store, as long ones are."""
    assert "broker.max_record_bytes" in said
    assert "broker.inline_sample_bytes" in said
    limit = int(re.findall(r"at most (\d+)", said)[-1])
    remedy = {"max_record_bytes": limit - (64 << 10), "inline_sample_bytes": 0}
    short_run_replays(broker, home, f"limited-{limit}", {"broker": {**two_partitions, **remedy}})


two_partitions = {"samples_partitions": 2, "max_workers": 3}


@pytest.mark.parametrize("limit_bytes", [default_limit_bytes, small_limit_bytes])
def test_topics_made_beforehand_with_the_clusters_limit_are_named_with_what_to_set(
    limit_bytes: int, tmp_path: Path, cache_directory: Path
) -> None:
    settings = small_settings(tmp_path, "prepared")
    limited = {"message.max.bytes": str(limit_bytes)}
    with node(tmp_path / "kafka", cache_directory, limited) as broker:
        specs = [
            replace(
                spec, config={key: value for key, value in spec.config.items() if key != "max.message.bytes"}
            )
            for spec in specs_of_run(settings)
        ]
        with broker.admin() as admin:
            admin.create_topics(specs)
        with pytest.raises(TopicMismatch) as refused:
            create_run(broker, settings)
        said = str(refused.value)
        assert (
            f"topic rollog-test.prepared.samples has max.message.bytes = {limit_bytes}, not 16777216" in said
        )
        remedy = int(re.findall(r"broker\.max_record_bytes = (\d+)", said)[0])
        assert remedy == limit_bytes - (64 << 10)
        sizes = {**two_partitions, "max_record_bytes": remedy, "inline_sample_bytes": 0}
        short_run_replays(broker, tmp_path, "prepared", {"broker": sizes})


def test_where_nobody_may_create_topics_those_of_the_administrator_are_used_and_checked(
    tmp_path: Path, cache_directory: Path
) -> None:
    directory = tmp_path / "kafka"
    settings = small_settings(tmp_path, "made-by-others")
    samples = "rollog-test.made-by-others.samples"
    with node(directory, cache_directory, {}) as broker, broker.admin() as admin:
        admin.create_topics(
            [
                replace(spec, num_partitions=5, config={**spec.config, "cleanup.policy": "compact"})
                if spec.name == samples
                else spec
                for spec in specs_of_run(settings)
            ]
        )
    with node(directory, cache_directory, policy_settings(0)) as broker:
        with pytest.raises(BrokerError, match="topics are made by the platform team") as refused:
            create_run(broker, small_settings(tmp_path, "another"))
        for word in ("rollog-test.another.tasks", "3 partitions", "rollog topics print"):
            assert word in str(refused.value)
        with pytest.raises(TopicMismatch) as differs:
            create_run(broker, settings)
        for word in (f"topic {samples} has 5 partitions, not 2", "cleanup.policy = compact, not delete"):
            assert word in str(differs.value)
    with node(directory, cache_directory, {}) as broker, broker.admin() as admin:
        admin.delete_topics([samples])
    with node(directory, cache_directory, {}) as broker, broker.admin() as admin:
        admin.create_topics([spec for spec in specs_of_run(settings) if spec.name == samples])
    with node(directory, cache_directory, policy_settings(0)) as broker:
        short_run_replays(broker, tmp_path, "made-by-others")
