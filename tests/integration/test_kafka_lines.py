"""Apache Kafka 3.9 to the newest: each line keeps every promise of the broker port and carries a run. Takes minutes."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest
from support.broker_suite import passes_contract_suite, short_run_replays, told
from support.kafka_lines import KafkaNode, Line, java_for, kafka_jars, lines

from rollog.kernel.broker.kafka import KafkaBroker
from rollog.kernel.errors import exit_status_configuration

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [pytest.mark.slow, pytest.mark.broker, pytest.mark.timeout(600)]

said_seconds = 30.0
"""A start of Python on a loaded machine included."""


@pytest.fixture(scope="module", params=lines, ids=lambda line: line.name)
def line(request: pytest.FixtureRequest) -> Line:
    chosen: Line = request.param
    return chosen


@pytest.fixture(scope="module")
def node(line: Line, tmp_path_factory: pytest.TempPathFactory, cache_directory: Path) -> Iterator[KafkaNode]:
    """A broker of that line."""
    java, jars = java_for(line), kafka_jars(line, cache_directory)
    with KafkaNode(java, jars, tmp_path_factory.mktemp(f"kafka-{line.name}")) as kafka:
        yield kafka


def test_it_keeps_every_promise_of_the_broker_port(node: KafkaNode) -> None:
    passes_contract_suite(node.address)


def test_it_tells_its_line(line: Line, node: KafkaNode) -> None:
    with KafkaBroker(node.address).admin() as admin:
        assert admin.broker_version() == line.name


def test_a_cluster_without_transactions_is_refused_by_name(tmp_path: Path, cache_directory: Path) -> None:
    old = Line("2.8", "2.8.2", 8, 17)
    with KafkaNode(java_for(old), kafka_jars(old, cache_directory), tmp_path / "old") as kafka:
        began = time.monotonic()
        status, said = told("topics", "create", "--run", "old", "--broker", kafka.address, home=tmp_path)
        assert time.monotonic() - began < said_seconds, said
    assert status == exit_status_configuration, said
    assert "Traceback" not in said
    for word in (
        kafka.address,
        "Apache Kafka 2.8",
        "InitProducerId",
        "EndTxn",
        "transactions",
        "3.9 or later",
    ):
        assert word in said


def test_a_run_is_trained_audited_and_trained_again_to_the_same_bytes(
    line: Line, node: KafkaNode, tmp_path: Path
) -> None:
    short_run_replays(KafkaBroker(node.address), tmp_path, f"line-{line.name.replace('.', '-')}")
