"""A secured cluster: every kind of listener is connected to, and whatever does not fit is named at once."""

from __future__ import annotations

import base64
import gc
import json
import re
import ssl
import threading
import time
import uuid
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner
from kafka.admin import ACLOperation, ResourceType
from support.broker_topics import a_topic, read_to_end
from support.certificates import Authority
from support.secured_kafka import Listener, SecuredKafka, SecuredListeners
from support.waiting import wait_until

from rollog.cli.main import cli
from rollog.kernel.broker.ports import TopicPartition
from rollog.kernel.broker.refusal_watch import RefusalWatch
from rollog.kernel.errors import (
    BrokerError,
    BrokerRefused,
    BrokerTimeout,
    ConfigError,
    RecordTooLarge,
    TopicMismatch,
    exit_status,
    exit_status_configuration,
)
from rollog.settings.security import SecurityConfig, security_settings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from rollog.kernel.broker.ports import Broker

pytestmark = pytest.mark.broker

longest_seconds = 15.0
refused_within_seconds = 5.0
most_attempts = 4
clients: dict[str, Callable[[Broker], Any]] = {
    "producer": lambda broker: broker.producer(client_id="test"),
    "consumer": lambda broker: broker.consumer(client_id="test", group_id="test"),
    "admin": lambda broker: broker.admin(),
    "transactional producer": lambda broker: broker.transactional_producer("test"),
}


@pytest.fixture(scope="module")
def secured_kafka(tmp_path_factory: pytest.TempPathFactory, cache_directory: Path) -> Iterator[SecuredKafka]:
    listeners = SecuredListeners(
        users={"admin": "admin-password", "writer": "writer-password", "ada": "ada-password"}
    )
    with SecuredKafka(tmp_path_factory.mktemp("secured"), cache_directory, secured=listeners) as kafka:
        yield kafka


@pytest.fixture(scope="module")
def other_authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("other"), "other-authority")


def refused(broker: Broker, client: str) -> str:
    """What is said where this client is asked for, and in time: on a busy machine the quickest attempt counts."""
    for _ in range(most_attempts):
        begin = time.monotonic()
        with pytest.raises(BrokerRefused) as caught:
            clients[client](broker)
        if time.monotonic() - begin < refused_within_seconds:
            return str(caught.value)
    raise AssertionError(f"{client} is refused after more than {refused_within_seconds:g} s: {caught.value}")


fitting = [
    pytest.param(Listener.SCRAM_TLS, {}),
    pytest.param(Listener.SCRAM_TLS, {"mechanism": "SCRAM-SHA-256"}, marks=pytest.mark.slow),
    pytest.param(Listener.SCRAM_TLS, {"mechanism": "PLAIN"}),
    pytest.param(Listener.SCRAM_PLAIN_TEXT, {}, marks=pytest.mark.slow),
    pytest.param(Listener.MUTUAL_TLS, {}),
]


@pytest.mark.parametrize(("listener", "changes"), fitting)
def test_records_go_through_every_listener_that_knows_its_users(
    either_client: SecuredKafka, listener: Listener, changes: dict[str, str]
) -> None:
    broker = either_client.broker("admin", listener, **changes)
    topic = a_topic(broker)
    with broker.producer(client_id="writer") as producer:
        producer.send(topic, 0, b"sent")
        producer.flush(20)
    assert [record.value for record in read_to_end(broker, topic)] == [b"sent"]


def test_transactions_go_through_a_listener_that_knows_its_users(either_client: SecuredKafka) -> None:
    broker = either_client.broker()
    topic = a_topic(broker)
    with broker.transactional_producer(f"tx-{uuid.uuid4().hex}") as transactional:
        transactional.begin()
        transactional.send(topic, 0, b"committed")
        transactional.commit(20)
    assert [record.value for record in read_to_end(broker, topic)] == [b"committed"]


def test_a_token_of_a_file_is_who_connects(either_client: SecuredKafka, tmp_path: Path) -> None:
    def part(claims: dict[str, object]) -> str:
        return base64.urlsafe_b64encode(json.dumps(claims).encode()).decode().rstrip("=")

    token = tmp_path / "token"
    now = int(time.time())
    token.write_text(f"{part({'alg': 'none'})}.{part({'sub': 'admin', 'iat': now, 'exp': now + 600})}.\n")
    broker = either_client.broker(
        "admin", Listener.OAUTH, mechanism="OAUTHBEARER", oauth_token_file=str(token)
    )
    topic = a_topic(broker)
    with broker.producer(client_id="writer") as producer:
        producer.send(topic, 0, b"sent").offset(20)
    assert [record.value for record in read_to_end(broker, topic)] == [b"sent"]
    token.write_text("no token\n")
    assert "does not take the token" in refused(broker, "admin")


unfitting: dict[str, tuple[Listener, dict[str, Any], str]] = {
    "wrong password": (Listener.SCRAM_TLS, {"username": "ada"}, "does not take the password of user 'ada'"),
    "wrong password of PLAIN": (
        Listener.SCRAM_TLS,
        {"mechanism": "PLAIN", "username": "ada"},
        "does not take the password of user 'ada'",
    ),
    "unknown user": (Listener.SCRAM_TLS, {"username": "nobody"}, "correct broker.security.username"),
    "CA of the system": (Listener.SCRAM_TLS, {"ca_file": None}, "set broker.security.ca_file"),
    "expired certificate": (Listener.EXPIRED, {}, "has expired: renew it on the broker"),
    "other host": (Listener.OTHER_HOST, {}, "is not for the host 127.0.0.1"),
    "mechanism": (
        Listener.OAUTH,
        {"mechanism": "SCRAM-SHA-512", "username": "admin", "password_env": "PATH"},
        "it takes OAUTHBEARER",
    ),
    "plain text to TLS": (Listener.TLS, {"protocol": "PLAINTEXT", "ca_file": None}, "speaks TLS"),
    "TLS to plain text": (Listener.PLAIN_TEXT, {"protocol": "SSL"}, "speaks plain text"),
    "no user to SASL": (
        Listener.SCRAM_TLS,
        {"protocol": "SSL", "mechanism": None, "username": None, "password_file": None},
        "wants to know who connects",
    ),
    "no user to SASL in plain text": (
        Listener.SCRAM_PLAIN_TEXT,
        {"protocol": "PLAINTEXT", "mechanism": None, "username": None, "password_file": None},
        "set broker.security.protocol to SASL_PLAINTEXT",
    ),
    "user to a listener without": (
        Listener.TLS,
        {"protocol": "SASL_SSL", "mechanism": "PLAIN", "username": "admin", "password_env": "PATH"},
        "takes no users",
    ),
    "no client certificate": (
        Listener.MUTUAL_TLS,
        {"certificate_file": None, "key_file": None},
        "wants a client certificate",
    ),
}


# Admin clients, and whoever takes over a transactional id, are kafka-python's in any case. All of them ask before they
# connect; that each does is shown below for one case, and here for all in the slow tests.
@pytest.mark.parametrize(
    ("either_client", "client"),
    [
        pytest.param("kafka-python", "admin"),
        *(pytest.param("kafka-python", each, marks=pytest.mark.slow) for each in clients if each != "admin"),
        *(pytest.param("confluent", each, marks=pytest.mark.slow) for each in ("producer", "consumer")),
    ],
    indirect=["either_client"],
)
@pytest.mark.parametrize("case", unfitting)
def test_what_does_not_fit_is_named_at_once_by_every_client(
    either_client: SecuredKafka, case: str, client: str
) -> None:
    listener, changes, told = unfitting[case]
    broker = either_client.broker("admin", listener, **changes)
    message = refused(broker, client)
    assert told in message
    assert broker.address in message
    assert "admin-password" not in message


@pytest.mark.parametrize("client", clients)
def test_an_authority_that_signed_neither_is_named(
    secured_kafka: SecuredKafka, other_authority: Authority, client: str
) -> None:
    message = refused(secured_kafka.broker(ca_file=str(other_authority.path)), client)
    assert f"is signed by nobody in broker.security.ca_file = {other_authority.path}" in message
    stranger = other_authority.issue("admin", hosts=())
    message = refused(
        secured_kafka.broker(
            "admin",
            Listener.MUTUAL_TLS,
            certificate_file=str(stranger.certificate),
            key_file=str(stranger.key),
        ),
        client,
    )
    assert f"did not take this client's certificate {stranger.certificate}" in message


commands: dict[str, tuple[str, ...]] = {
    "up": ("up", "--run", "refused", "--skip-preflight"),
    "resume": ("resume", "refused"),
    "topics create": ("topics", "create", "--run", "refused", "--skip-preflight"),
    "topics check": ("topics", "check", "--run", "refused"),
    "topics prune": ("topics", "prune", "refused"),
    "dispatch": ("dispatch", "--run", "refused"),
    "rollout": ("rollout", "--run", "refused"),
    "train": ("train", "--run", "refused"),
    "runs": ("runs",),
    "runs delete": ("runs", "delete", "refused", "--yes"),
    "watch": ("watch", "--run", "refused"),
    "audit": ("audit", "refused"),
    "replay": ("replay", "refused"),
    "dead-letters": ("dead-letters", "refused"),
}


# What differs between them is where they connect first.
@pytest.mark.parametrize(
    "command",
    [
        pytest.param(each, marks=() if each in {"up", "dispatch", "audit"} else pytest.mark.slow)
        for each in commands
    ],
)
def test_every_command_ends_at_once_with_what_is_wrong_with_its_password(
    secured_kafka: SecuredKafka, command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = tmp_path / "wrong"
    wrong.write_text("a-wrong-password\n")
    for key, value in (secured_kafka.table("ada") | {"password_file": str(wrong)}).items():
        monkeypatch.setenv(f"ROLLOG_BROKER__SECURITY__{key.upper()}", str(value))
    place = ("--broker", secured_kafka.address_of(Listener.SCRAM_TLS), "--home", str(tmp_path))
    begin = time.monotonic()
    result = CliRunner().invoke(cli, [*commands[command], *place])
    assert time.monotonic() - begin < longest_seconds
    assert isinstance(result.exception, BrokerRefused), result.output
    assert exit_status(result.exception) == exit_status_configuration
    told = str(result.exception)
    assert "does not take the password of user 'ada' (Authentication failed" in told
    assert str(wrong) in told
    assert "a-wrong-password" not in told + result.output


@pytest.mark.slow  # it imports torch
def test_doctor_tells_a_refusal_from_a_broker_that_is_away(
    secured_kafka: SecuredKafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = tmp_path / "wrong"
    wrong.write_text("a-wrong-password\n")
    for key, value in (secured_kafka.table("ada") | {"password_file": str(wrong)}).items():
        monkeypatch.setenv(f"ROLLOG_BROKER__SECURITY__{key.upper()}", str(value))
    address = secured_kafka.address_of(Listener.SCRAM_TLS)
    told = CliRunner().invoke(cli, ["doctor", "--broker", address, "--home", str(tmp_path)]).output
    assert "refuses this client" in told
    assert "does not take the password of user 'ada'" in " ".join(told.split())


def test_a_certificate_for_another_host_is_taken_where_names_are_not_checked(
    secured_kafka: SecuredKafka,
) -> None:
    with secured_kafka.broker("admin", Listener.OTHER_HOST, check_hostname=False).admin() as admin:
        admin.list_topics()


def test_a_sealed_key_is_opened_with_its_phrase(either_client: SecuredKafka, tmp_path: Path) -> None:
    issued = either_client.authority.issue("admin", hosts=(), passphrase=b"phrase", file_name="sealed")
    phrase = tmp_path / "phrase"
    phrase.write_text("phrase\n")
    files = {"certificate_file": str(issued.certificate), "key_file": str(issued.key)}
    broker = either_client.broker("admin", Listener.MUTUAL_TLS, **files, key_passphrase_file=str(phrase))
    topic = a_topic(broker)
    with broker.producer(client_id="writer") as producer:
        producer.send(topic, 0, b"sent").offset(20)
    for wrong in ({}, {"key_passphrase_env": "PATH"}):
        with pytest.raises(ConfigError, match="key_passphrase_file"):
            either_client.broker("admin", Listener.MUTUAL_TLS, **files, **wrong).admin()


def test_a_missing_topic_and_a_record_over_the_brokers_limit_are_named(either_client: SecuredKafka) -> None:
    topic = a_topic(either_client.broker(), max_message_bytes="70000")
    for operation in (ACLOperation.WRITE, ACLOperation.READ):
        either_client.grant("writer", operation, topic)
    # Without a right to it, whether it exists is not told.
    either_client.grant("writer", ACLOperation.WRITE, "no-such-topic")
    either_client.grant("writer", ACLOperation.WRITE, "tx-writer", kind=ResourceType.TRANSACTIONAL_ID)
    broker = either_client.broker("writer")
    with broker.producer(client_id="writer") as producer:
        with pytest.raises(TopicMismatch, match="no-such-topic"):
            producer.send("no-such-topic", 0, b"x")
        # The writer may not ask for the topic's limit, so the broker itself refuses.
        delivery = producer.send(topic, 0, bytes(200_000))
        with pytest.raises(RecordTooLarge, match=r"raise the topic's max\.message\.bytes"):
            delivery.offset(longest_seconds)
    with broker.transactional_producer("tx-writer") as transactional:
        transactional.begin()
        with pytest.raises(RecordTooLarge):
            transactional.send(topic, 0, bytes(200_000)).offset(longest_seconds)
        transactional.abort()


def test_a_password_that_was_changed_counts_from_the_next_client_on(
    secured_kafka: SecuredKafka, tmp_path: Path
) -> None:
    password = tmp_path / "password"
    password.write_text("ada-password\n")
    broker = secured_kafka.broker("ada", password_file=str(password))
    with broker.admin() as admin:
        admin.list_topics()
    password.write_text("another\n")
    assert str(password) in refused(broker, "admin")
    password.write_text("ada-password\n")
    with broker.admin() as admin:
        admin.list_topics()


# kafka-python leaves the socket of a failed handshake to the garbage collector.
# confluent-kafka keeps the CA with which a client was made, so it is let in again.
@pytest.mark.parametrize("either_client", ["kafka-python"], indirect=True)
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_consumer_that_is_not_let_in_again_says_so(either_client: SecuredKafka, tmp_path: Path) -> None:
    topic = a_topic(either_client.broker())
    ca_file = tmp_path / "ca.pem"
    ca_file.write_bytes(either_client.authority.path.read_bytes())
    with either_client.broker(ca_file=str(ca_file)).consumer(client_id="reader") as consumer:
        consumer.assign({TopicPartition(topic, 0): 0})
        assert consumer.poll(0.2) == []
        ca_file.write_bytes(Authority(tmp_path / "next", "next-authority").path.read_bytes())
        either_client.restart()
        with pytest.raises(BrokerRefused, match=re.escape(str(ca_file))):
            wait_until(lambda: consumer.poll(0.2) != [], timeout_seconds=60)
    for left in gc.get_objects():
        if isinstance(left, ssl.SSLSocket):
            left.close()


def test_whoever_waits_is_told_that_the_broker_refuses_it(
    secured_kafka: SecuredKafka, tmp_path: Path
) -> None:
    wrong = tmp_path / "wrong"
    wrong.write_text("a-wrong-password\n")
    address, table = secured_kafka.address_of(Listener.SCRAM_TLS), secured_kafka.table("ada")
    watches = [
        RefusalWatch(address, security_settings(SecurityConfig.model_validate(each)))
        for each in (table, table | {"password_file": str(wrong)})
    ]
    assert watches[0].during(lambda: 7) == 7
    with pytest.raises(BrokerTimeout):
        watches[0].during(lambda: raised(BrokerTimeout("too late")))
    never = threading.Event()
    with pytest.raises(BrokerRefused, match=str(wrong)):
        watches[1].during(lambda: never.wait(10 * longest_seconds))
    # A library says little of it.
    with pytest.raises(BrokerRefused, match=str(wrong)):
        watches[1].during(lambda: raised(BrokerError("socket disconnected")))
    never.set()


def raised(error: Exception) -> None:
    raise error


def test_nobody_may_do_what_no_acl_gives(secured_kafka: SecuredKafka) -> None:
    topic = a_topic(secured_kafka.broker())
    with secured_kafka.broker("ada").admin() as admin:
        assert topic not in admin.list_topics()
    secured_kafka.grant("ada", ACLOperation.DESCRIBE, topic)
    with secured_kafka.broker("ada").admin() as admin:
        assert topic in admin.list_topics()


@pytest.mark.slow
def test_its_addresses_stay_when_it_starts_again(secured_kafka: SecuredKafka) -> None:
    before = [secured_kafka.address_of(listener) for listener in Listener]
    secured_kafka.restart()
    assert [secured_kafka.address_of(listener) for listener in Listener] == before
    assert len(set(before)) == len(Listener)
