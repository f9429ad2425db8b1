"""Fixtures shared by all tests: brokers and names that no other test uses."""

from __future__ import annotations

import gc
import os
import sys
import uuid
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hypothesis
import pytest
from support.broker_topics import ReadBack
from support.long_files import first_files, long_files
from support.session_kafka import SessionKafka, SharedKafka
from support.small_registry import small_registry

from consumers.archive import WeightsChoice, write_archive
from rollog.kernel.broker.archive import ArchiveBroker
from rollog.kernel.broker.memory import MemoryBroker
from rollog.kernel.broker.topics import RunTopics
from rollog.kernel.errors import ConfigError
from rollog.kernel.registry.client import RegistryAddress, RegistryClient
from rollog.kernel.registry.framed_broker import FramedBroker
from rollog.kernel.registry.schema_ids import SchemaIds
from rollog.kernel.weights import WeightsStore

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rollog.kernel.broker.kafka import KafkaBroker
    from rollog.kernel.broker.ports import Broker

# On a busy machine any example can take long; no test is about time.
hypothesis.settings.register_profile("rollog", deadline=None)
hypothesis.settings.load_profile("rollog")

tests = Path(__file__).resolve().parent
modules_worth_a_freeze = 50
_num_modules_frozen = 0


def pytest_runtest_setup() -> None:
    """Keep what is imported out of the sight of the garbage collector, after each large import anew.

    A training engine collects garbage when it closes. With torch, transformers, DeepSpeed and vLLM imported, each time
    would cost half a second, which is half of the time of the engines' tests.
    """
    global _num_modules_frozen  # noqa: PLW0603 - hooks have no other place for what they know
    if len(sys.modules) < _num_modules_frozen + modules_worth_a_freeze:
        return
    gc.collect()
    gc.freeze()
    _num_modules_frozen = len(sys.modules)


@pytest.hookimpl(tryfirst=True)  # before marks choose among the tests
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark files that take long, and begin with the longest, so that processes which share the tests end together."""
    ranks = {tests / name: rank for rank, name in enumerate((*long_files, *first_files))}
    items.sort(key=lambda item: ranks.get(item.path, len(ranks)))
    are_long = {tests / name for name in long_files}
    for item in items:
        if item.path in are_long:
            item.add_marker(pytest.mark.long)


_shared_kafka = pytest.StashKey[SharedKafka]()


def _cache_directory() -> Path:
    home = os.environ.get("ROLLOG_HOME") or tests.parent / ".rollog"
    return Path(home) / "cache"


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Tell each test process where to ask for the broker that all of them share."""
    stash = node.config.stash
    if _shared_kafka not in stash:
        stash[_shared_kafka] = SharedKafka(_cache_directory())
    node.workerinput["kafka"] = str(stash[_shared_kafka].exchange)


def pytest_unconfigure(config: pytest.Config) -> None:
    """Stop the broker of the test processes, which have ended."""
    shared = config.stash.get(_shared_kafka, None)
    if shared is not None:
        shared.stop()


@pytest.fixture(scope="session")
def cache_directory() -> Path:
    """Where downloads stay from one test session to the next."""
    return _cache_directory()


@pytest.fixture(scope="session")
def embedded_kafka(
    pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory, cache_directory: Path
) -> Iterator[SessionKafka]:
    """One Apache Kafka for the whole session; where its jars cannot be had, skips, but fails in CI."""
    started_by = getattr(pytestconfig, "workerinput", None)
    with ExitStack() as opened:
        try:
            if started_by is not None:
                kafka = SessionKafka.asked_for(Path(started_by["kafka"]))
            else:
                directory = tmp_path_factory.mktemp("kafka")
                kafka = opened.enter_context(SessionKafka.started(directory, cache_directory))
        except ConfigError as error:
            if os.environ.get("CI") == "true":
                raise
            pytest.skip(str(error))
        yield kafka


@pytest.fixture(scope="session")
def kafka_address(request: pytest.FixtureRequest) -> str:
    """Where Apache Kafka is: at ROLLOG_TEST_BROKER, where that names one, else the session's embedded one."""
    given = os.environ.get("ROLLOG_TEST_BROKER")
    if given:
        return given
    embedded: SessionKafka = request.getfixturevalue("embedded_kafka")
    return embedded.address


@pytest.fixture
def kafka_broker(kafka_address: str) -> KafkaBroker:
    """Apache Kafka behind the port."""
    from rollog.kernel.broker.kafka import KafkaBroker  # noqa: PLC0415 - most tests need no Kafka client

    return KafkaBroker(kafka_address)


@pytest.fixture
def python_broker(kafka_address: str) -> KafkaBroker:
    """Apache Kafka through kafka-python alone."""
    from rollog.kernel.broker.kafka import KafkaBroker  # noqa: PLC0415 - most tests need no Kafka client

    return KafkaBroker(kafka_address, client="kafka-python")


@pytest.fixture
def confluent_broker(kafka_address: str) -> KafkaBroker:
    """Apache Kafka, written and read through confluent-kafka; skips where that is not installed."""
    pytest.importorskip("confluent_kafka")
    from rollog.kernel.broker.kafka import KafkaBroker  # noqa: PLC0415 - most tests need no Kafka client

    return KafkaBroker(kafka_address, client="confluent")


@pytest.fixture
def memory_broker() -> MemoryBroker:
    """A broker in memory, empty."""
    return MemoryBroker()


@pytest.fixture
def framed_broker(memory_broker: MemoryBroker) -> Iterator[FramedBroker]:
    """The broker in memory behind the framing of a schema registry."""
    with small_registry() as registry:
        client = RegistryClient(RegistryAddress(url=registry.url))
        yield FramedBroker(memory_broker, SchemaIds(client, []))


@pytest.fixture(
    params=[
        pytest.param("memory"),
        pytest.param("framed"),
        pytest.param("python", marks=pytest.mark.broker),
        pytest.param("confluent", marks=pytest.mark.broker),
    ]
)
def broker(request: pytest.FixtureRequest) -> Broker:
    """Every broker: a test that takes this runs once in memory, framed and bare, and once through each Kafka client."""
    chosen: Broker = request.getfixturevalue(f"{request.param}_broker")
    return chosen


@pytest.fixture(
    params=[
        pytest.param("memory"),
        pytest.param("archive"),
        pytest.param("python", marks=pytest.mark.broker),
        pytest.param("confluent", marks=pytest.mark.broker),
    ]
)
def written(request: pytest.FixtureRequest, tmp_path: Path) -> ReadBack:
    """Either broker, read by itself, or one in memory, read through archives of it."""
    if request.param != "archive":
        broker: Broker = request.getfixturevalue(f"{request.param}_broker")
        return ReadBack(broker, lambda: broker)
    memory: MemoryBroker = request.getfixturevalue("memory_broker")

    def archived() -> Broker:
        path = tmp_path / f"{uuid.uuid4().hex}.zip"
        store = WeightsStore(str(tmp_path / "weights"))
        names = sorted(memory.topics)
        write_archive(memory, RunTopics("rollog-test", "run"), names, store, path, weights=WeightsChoice.NONE)
        return ArchiveBroker(path)

    return ReadBack(memory, archived)


@pytest.fixture
def run_topics() -> RunTopics:
    """Topic names of a run that no other test has."""
    return RunTopics("rollog-test", f"run-{uuid.uuid4().hex[:12]}")


@pytest.fixture(scope="module")
def model_path(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Where a model with random weights lies, small enough to train in seconds."""
    from support.small_training import make_model  # noqa: PLC0415 - it loads torch, which most tests do without

    return make_model(tmp_path_factory.mktemp("model"))
