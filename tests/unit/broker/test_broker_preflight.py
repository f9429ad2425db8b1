"""What is said of an address where no broker can be used."""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from rollog.kernel.broker.preflight import Address, answers, parse_addresses, wait_for_broker
from rollog.kernel.errors import BrokerError, BrokerRefused, BrokerUnreachable, ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator

Answer = Callable[[socket.socket], None]
Serve = Callable[[Answer], Address]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Answer every connection to a new port in a given way."""
    servers: list[socket.socket] = []
    threads: list[threading.Thread] = []

    def start(answer: Answer) -> Address:
        server = socket.create_server(("127.0.0.1", 0))
        servers.append(server)

        def run() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                with connection:
                    answer(connection)

        threads.append(threading.Thread(target=run))
        threads[-1].start()
        return Address("127.0.0.1", server.getsockname()[1])

    yield start
    for server in servers:
        server.shutdown(socket.SHUT_RDWR)
        server.close()
    for thread in threads:
        thread.join()


def a_broker(*advertised: Address) -> Answer:
    """Answers a metadata request as Kafka does."""

    def answer(connection: socket.socket) -> None:
        request = connection.recv(1000)
        if len(request) < 12:
            return
        brokers = b"".join(
            struct.pack(">ih", 1, len(a.host)) + a.host.encode() + struct.pack(">ih", a.port, -1)
            for a in advertised
        )
        body = request[8:12] + struct.pack(">i", len(advertised)) + brokers + struct.pack(">ii", 1, 0)
        connection.sendall(struct.pack(">i", len(body)) + body)

    return answer


def saying(answer: bytes) -> Answer:
    def say(connection: socket.socket) -> None:
        connection.recv(1000)
        connection.sendall(answer)

    return say


def reason(
    address: Address, timeout_seconds: float = 0.3, kind: type[BrokerError] = BrokerUnreachable
) -> str:
    with pytest.raises(kind) as caught:
        wait_for_broker(str(address), timeout_seconds)
    assert str(address) in str(caught.value)
    return str(caught.value)


def a_closed_port() -> Address:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return Address("127.0.0.1", probe.getsockname()[1])


def test_a_broker_that_answers_and_can_be_reached_passes(serve: Serve) -> None:
    other = serve(saying(b""))
    address = serve(a_broker(a_closed_port(), other))
    wait_for_broker(f"{a_closed_port()}, {address}", 5)
    assert answers(address, 5)
    assert not answers(a_closed_port(), 5)


def test_nothing_listening_is_told_from_a_name_that_does_not_resolve() -> None:
    assert "connection refused" in reason(a_closed_port())
    assert "does not resolve" in reason(Address("no-such-host.invalid", 9092))


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "HTTP"),
        (b"SSH-2.0-OpenSSH_9.6\r\n", "not Kafka's"),
        (b"220", "not Kafka's"),
        (b"", "TLS or SASL"),
    ],
)
def test_what_is_no_kafka_listener_is_named(serve: Serve, answer: bytes, told: str) -> None:
    assert told in reason(serve(saying(answer)))


def test_a_listener_with_tls_is_told_at_once_with_the_setting_that_helps(serve: Serve) -> None:
    begin = time.monotonic()
    told = reason(serve(saying(b"\x15\x03\x03\x00\x02\x02\x46")), 60.0, BrokerRefused)
    assert time.monotonic() - begin < 30
    assert "this listener speaks TLS" in told
    assert "broker.security.protocol" in told


def test_silence_is_bounded_and_named(serve: Serve) -> None:
    release = threading.Event()

    def wait(_connection: socket.socket) -> None:
        release.wait(20)

    address = serve(wait)
    try:
        assert "does not answer" in reason(address)
    finally:
        release.set()


def test_addresses_advertised_but_out_of_reach_are_named(serve: Serve) -> None:
    hidden = a_closed_port()
    told = reason(serve(a_broker(hidden)))
    assert str(hidden) in told
    assert "advertised.listeners" in told


def test_a_broker_without_its_cluster_is_not_ready(serve: Serve) -> None:
    address = serve(a_broker())
    assert not answers(address, 5)
    assert "finish starting" in reason(address)


def test_addresses_are_read_in_every_usual_form() -> None:
    assert parse_addresses("a:1, [::1]:2,c.example:65535") == [
        Address("a", 1),
        Address("::1", 2),
        Address("c.example", 65535),
    ]
    assert str(Address("::1", 2)) == "[::1]:2"


@pytest.mark.parametrize(
    "wrong", ["", "host", "host:", ":9092", "host:x", "host:0", "host:65536", "a:1,,b:2"]
)
def test_a_malformed_address_is_a_configuration_error(wrong: str) -> None:
    with pytest.raises(ConfigError, match=r"host:port.*ROLLOG_BROKER__BOOTSTRAP_SERVERS"):
        parse_addresses(wrong)


def test_a_known_refusal_is_not_waited_for_as_long_as_a_silent_broker() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    began = time.monotonic()
    with pytest.raises(BrokerUnreachable, match=r"no Kafka broker within 0\.3 s .* connection refused"):
        wait_for_broker(f"127.0.0.1:{port}", 60.0, refusals_seconds=0.3)
    assert time.monotonic() - began < 30


def test_another_protocol_is_a_known_refusal(serve: Serve) -> None:
    address = serve(saying(b"HTTP/1.1 400 Bad Request\r\n\r\n"))
    with pytest.raises(BrokerUnreachable, match=r"within 0\.3 s .* an HTTP server answers"):
        wait_for_broker(str(address), 60.0, refusals_seconds=0.3)


def test_whoever_is_silent_gets_all_the_time(serve: Serve) -> None:
    def say_nothing(connection: socket.socket) -> None:
        connection.recv(1000)
        connection.recv(1000)

    address = serve(say_nothing)
    with pytest.raises(BrokerUnreachable, match=r"within 0\.5 s"):
        wait_for_broker(str(address), 0.5, refusals_seconds=0.1)
