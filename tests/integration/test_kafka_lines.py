"""Apache Kafka 3.9 to the newest: each line keeps every promise of the broker port and carries a run. Takes minutes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from support.broker_suite import passes_contract_suite, short_run_replays
from support.kafka_lines import KafkaNode, Line, java_for, kafka_jars, lines

from rollog.kernel.broker.kafka import KafkaBroker

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [pytest.mark.slow, pytest.mark.broker, pytest.mark.timeout(600)]


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


def test_a_run_is_trained_audited_and_trained_again_to_the_same_bytes(
    line: Line, node: KafkaNode, tmp_path: Path
) -> None:
    short_run_replays(KafkaBroker(node.address), tmp_path, f"line-{line.name.replace('.', '-')}")
