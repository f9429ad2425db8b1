"""Runs whose records are framed by a schema registry, on Apache Kafka, by the command line."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import pytest
from support.apicurio import apicurio
from support.broker_topics import read_to_end
from support.small_registry import small_registry
from support.threaded_run import settings_file, small_settings

from rollog.kernel.broker.topics import run_topic_names
from rollog.kernel.registry.client import RegistryAddress, RegistryClient
from rollog.kernel.registry.wire_format import schema_header, schema_id_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from support.terminal import Terminal

    from rollog.kernel.broker.kafka import KafkaBroker
    from rollog.kernel.broker.topics import RunTopics
    from rollog.settings.settings import Settings

pytestmark = [pytest.mark.broker, pytest.mark.engine, pytest.mark.slow, pytest.mark.timeout(1500)]

patience_seconds = 600.0


def framed_settings(home: Path, topics: RunTopics, url: str, **sections: dict[str, object]) -> Settings:
    broker = {"framing": "registry", "samples_partitions": 2, "max_workers": 3}
    return small_settings(
        home, topics.run, broker=broker, registry={"url": url, "timeout_seconds": 60.0}, **sections
    )


def all_are_framed(broker: KafkaBroker, topics: RunTopics) -> int:
    """How many records the topics of a run hold, each with an id and the fingerprint."""
    records = []
    with broker.admin() as admin:
        specs = admin.describe_topics(run_topic_names(topics))
    for name, spec in specs.items():
        records += read_to_end(broker, name, range(spec.num_partitions))
    for record in records:
        if record.value is not None:
            assert schema_id_of(record.value) is not None, record
            assert record.header(schema_header) is not None, record
    return len(records)


@pytest.fixture(params=["small", "apicurio"])
def url(request: pytest.FixtureRequest, tmp_path: Path, cache_directory: Path) -> Iterator[str]:
    if request.param == "small":
        with small_registry() as registry:
            yield registry.url
    else:
        with apicurio(cache_directory, tmp_path) as real:
            yield real


def test_a_run_is_made_with_a_registry_and_read_without(
    url: str, terminal: Terminal, tmp_path: Path, kafka_broker: KafkaBroker, run_topics: RunTopics
) -> None:
    made_with(url, terminal, tmp_path, kafka_broker, run_topics)
    read_without_a_registry(terminal, tmp_path, kafka_broker, run_topics)
    deleted_with_its_schemas(url, terminal, kafka_broker, run_topics)


def made_with(url: str, terminal: Terminal, directory: Path, broker: KafkaBroker, topics: RunTopics) -> None:
    settings_file(directory / "run.toml", framed_settings(directory, topics, url))
    terminal.up("--run", topics.run, "--config", "run.toml", "--broker", broker.address)
    assert terminal.status(patience_seconds) == 0, terminal.told()
    assert all_are_framed(broker, topics) > 30


def read_without_a_registry(
    terminal: Terminal, directory: Path, broker: KafkaBroker, topics: RunTopics
) -> None:
    """The registry is gone, and nobody says where it was: the records say themselves what wrote them."""
    assert "ROLLOG_REGISTRY__URL" not in os.environ
    place = (topics.run, "--set", f"run.prefix={topics.prefix}", "--broker", broker.address)
    terminal.start("audit", *place)
    assert terminal.status(patience_seconds) == 0, terminal.told()
    terminal.start("replay", *place, "--json", "replay.json")
    assert terminal.status(patience_seconds) == 0, terminal.told()
    assert json.loads((directory / "replay.json").read_text())["equal"] is True
    terminal.start("export", *place, str(directory / "run.zip"))
    assert terminal.status(patience_seconds) == 0, terminal.told()
    terminal.start("audit", "--archive", str(directory / "run.zip"))
    assert terminal.status(patience_seconds) == 0, terminal.told()
    terminal.start("runs", "--set", f"run.prefix={topics.prefix}", "--broker", broker.address)
    assert terminal.status(patience_seconds) == 0, terminal.told()
    assert topics.run in terminal.told()


def deleted_with_its_schemas(url: str, terminal: Terminal, broker: KafkaBroker, topics: RunTopics) -> None:
    client = RegistryClient(RegistryAddress(url=url, timeout_seconds=60.0))
    start = f"{topics.prefix}.{topics.run}."
    subjects = client.subjects(start)
    assert f"{topics.samples}-value" in subjects
    place = ("--set", f"run.prefix={topics.prefix}", "--broker", broker.address)
    registry = ("--set", f"registry.url={url}", "--set", "registry.timeout_seconds=60")
    terminal.start("runs", "delete", topics.run, "--yes", *place, *registry)
    assert terminal.status(patience_seconds) == 0, terminal.told()
    assert f"deleted {len(subjects)} subjects" in terminal.told()
    assert client.subjects(start) == []
