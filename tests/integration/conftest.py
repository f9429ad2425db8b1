"""What the tests of single roles share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from rollog.kernel.broker.rights import Role

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from support.acls import Acls
    from support.beside_training import Beside
    from support.secured_kafka import SecuredKafka
    from support.small_training import FakeRun
    from support.terminal import Terminal

    from rollog.kernel.broker.memory import MemoryBroker
    from rollog.kernel.broker.ports import Broker
    from rollog.kernel.broker.topics import RunTopics
    from trainer.settings import TrainerSettings


@pytest.fixture(
    params=[
        pytest.param("memory"),
        pytest.param("framed"),
        pytest.param("kafka", marks=pytest.mark.broker),
        pytest.param("python", marks=(pytest.mark.broker, pytest.mark.slow)),
        pytest.param("confluent", marks=(pytest.mark.broker, pytest.mark.slow)),
    ]
)
def broker(request: pytest.FixtureRequest) -> Broker:
    """Every broker: whole runs take long, so in the fast tests Kafka has the default client, a part of both."""
    chosen: Broker = request.getfixturevalue(f"{request.param}_broker")
    return chosen


@pytest.fixture
def run(memory_broker: MemoryBroker, run_topics: RunTopics) -> FakeRun:
    """A run with its topics, and nobody in it yet."""
    from support.small_training import FakeRun  # noqa: PLC0415 - it loads torch

    fake = FakeRun(memory_broker, run_topics)
    fake.create_topics()
    return fake


@pytest.fixture
def settings(tmp_path: Path, run_topics: RunTopics) -> TrainerSettings:
    """Of a trainer with the simulated engine."""
    from support.small_training import trainer_settings  # noqa: PLC0415 - it loads torch

    return trainer_settings(tmp_path, run_topics, "simulated")


@pytest.fixture
def beside(run: FakeRun, settings: TrainerSettings) -> Beside:
    """One trainer of that run, with what it does beside training in a test's hands."""
    from support.beside_training import Beside  # noqa: PLC0415 - it loads torch

    return Beside(run, settings)


@pytest.fixture
def terminal(tmp_path: Path, cache_directory: Path) -> Iterator[Terminal]:
    """Commands as a person gives them, with a state directory of their own."""
    from support.terminal import Terminal  # noqa: PLC0415 - tests of single roles need none

    made = Terminal(tmp_path, cache_directory)
    yield made
    made.close()


@pytest.fixture(scope="module")
def kafka_of_roles(tmp_path_factory: pytest.TempPathFactory, cache_directory: Path) -> Iterator[SecuredKafka]:
    """A broker that knows each role by its name, and lets nobody but `admin` do anything."""
    from support.secured_kafka import SecuredKafka, SecuredListeners  # noqa: PLC0415 - few tests need it

    users = {"admin": "admin-password"} | {role.value: f"{role}-password" for role in Role}
    listeners = SecuredListeners(users=users)
    with SecuredKafka(tmp_path_factory.mktemp("secured"), cache_directory, secured=listeners) as kafka:
        yield kafka


@pytest.fixture(scope="module")
def acls(kafka_of_roles: SecuredKafka) -> Iterator[Acls]:
    """The rights of its users."""
    from support.acls import Acls  # noqa: PLC0415 - few tests need it

    made = Acls(kafka_of_roles)
    yield made
    made.close()


@pytest.fixture(params=["kafka-python", "confluent"])
def either_client(secured_kafka: SecuredKafka, request: pytest.FixtureRequest) -> Iterator[SecuredKafka]:
    """The test's own secured cluster, through each client library in turn."""
    if request.param == "confluent":
        pytest.importorskip("confluent_kafka")
    secured_kafka.client = request.param
    yield secured_kafka
    secured_kafka.client = "auto"
