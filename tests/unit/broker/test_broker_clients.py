"""Which client library does what, by the setting and by what is installed."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING

import pytest

from rollog.kernel.broker import clients
from rollog.kernel.broker.clients import Clients, clients_of
from rollog.kernel.broker.kafka import KafkaBroker
from rollog.kernel.broker.security import Mechanism, Protocol, SecuritySettings
from rollog.kernel.errors import ConfigError

if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec

everything = Clients(confluent_writes=True, confluent_reads=True)
nothing = Clients(confluent_writes=False, confluent_reads=False)


@pytest.fixture
def not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a machine without confluent-kafka."""

    def found(name: str) -> ModuleSpec | None:
        return None if name == "confluent_kafka" else importlib.util.find_spec(name)

    monkeypatch.setattr(clients, "find_spec", found)


def test_each_choice_names_who_writes_and_who_reads() -> None:
    pytest.importorskip("confluent_kafka")
    assert clients_of("confluent") == everything
    assert clients_of("auto") == Clients(confluent_writes=True, confluent_reads=False)
    assert clients_of("kafka-python") == nothing


@pytest.mark.usefixtures("not_installed")
def test_a_library_that_is_missing_is_done_without_or_asked_for() -> None:
    assert clients_of("auto") == nothing
    with pytest.raises(ConfigError, match=r'pip install "rollog\[confluent\]"'):
        KafkaBroker("localhost:9092", client="confluent")


def test_a_mechanism_that_only_kafka_python_knows_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    def found(_: str) -> bool:
        return True

    monkeypatch.setattr(importlib.util, "find_spec", found)  # as if botocore were installed
    security = SecuritySettings(protocol=Protocol.SASL_SSL, mechanism=Mechanism.AWS_MSK_IAM)
    assert clients_of("auto", security) == nothing
    with pytest.raises(ConfigError, match="AWS_MSK_IAM"):
        clients_of("confluent", security)
