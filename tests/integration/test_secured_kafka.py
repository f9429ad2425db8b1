"""The secured broker of the tests is one: it knows users, refuses others, and its ACLs count."""

from __future__ import annotations

from typing import TYPE_CHECKING

import kafka.errors as kafka_errors
import pytest
from kafka import KafkaAdminClient
from kafka.admin import NewTopic
from support.secured_kafka import Listener, SecuredKafka, SecuredListeners, plain_client_settings

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.broker


@pytest.fixture(scope="module")
def secured_kafka(tmp_path_factory: pytest.TempPathFactory, cache_directory: Path) -> Iterator[SecuredKafka]:
    listeners = SecuredListeners(users={"admin": "admin-password", "ada": "ada-password"})
    with SecuredKafka(tmp_path_factory.mktemp("secured"), cache_directory, secured=listeners) as kafka:
        yield kafka


def test_a_super_user_makes_topics_and_others_may_not(secured_kafka: SecuredKafka) -> None:
    admin = KafkaAdminClient(**plain_client_settings(secured_kafka, "admin"))
    other = KafkaAdminClient(**plain_client_settings(secured_kafka, "ada"))
    try:
        admin.create_topics([NewTopic("made", 1, 1)])
        assert admin.list_topics() == ["made"]
        assert other.list_topics() == []
        with pytest.raises(kafka_errors.TopicAuthorizationFailedError):
            other.create_topics([NewTopic("denied", 1, 1)])
    finally:
        admin.close()
        other.close()


def test_its_addresses_stay_when_it_starts_again(secured_kafka: SecuredKafka) -> None:
    before = [secured_kafka.address_of(listener) for listener in Listener]
    secured_kafka.restart()
    assert [secured_kafka.address_of(listener) for listener in Listener] == before
    assert len(set(before)) == len(Listener)
