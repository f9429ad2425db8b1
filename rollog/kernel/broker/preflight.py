"""Whether a broker answers at an address, and if not, why, in words.

Client libraries report every fault of a connection as the same time-out. This asks each address for the cluster's
metadata over a plain socket and tells apart a name that does not resolve, a port nobody listens on, a listener that
is not Kafka or expects TLS, and a broker that advertises addresses which cannot be reached from here.
"""

from __future__ import annotations

import socket
import struct
import time
from dataclasses import dataclass

from rollog.kernel.addresses import public_address
from rollog.kernel.errors import BrokerUnreachable, ConfigError

_metadata_api_key = 3
_metadata_version = 1
_correlation_id = 7_310_157
_tls_alert = 0x15
_tls_handshake = 0x16
_largest_answer_bytes = 8 << 20
_retry_seconds = 0.2
_only_plain = "rollog connects in plain text and without authentication only, name such a listener"


@dataclass(frozen=True, slots=True, order=True)
class Address:
    """Host and port of one broker."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class _Refused(Exception):
    """Why one address is of no use. `is_answer` where somebody has answered, and asking again is of little use."""

    def __init__(self, reason: str, *, is_answer: bool = False) -> None:
        super().__init__(reason)
        self.is_answer = is_answer


def parse_addresses(bootstrap_servers: str) -> list[Address]:
    """`host:port[,host:port]` in parts. Raises ConfigError for anything else."""
    return [_parse_address(part.strip(), bootstrap_servers) for part in bootstrap_servers.split(",")]


def _parse_address(part: str, whole: str) -> Address:
    host, separator, port = part.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not separator or not host or not port.isdecimal() or not 0 < int(port) < 1 << 16:
        raise ConfigError(
            f"broker address {public_address(part)!r} in {public_address(whole)!r} is not host:port:"
            " write for example --broker localhost:9092 or set ROLLOG_BROKER__BOOTSTRAP_SERVERS"
        )
    return Address(host, int(port))


def wait_for_broker(
    bootstrap_servers: str, timeout_seconds: float, *, refusals_seconds: float | None = None
) -> None:
    """Return as soon as one of the addresses answers as a Kafka broker does.

    Raises BrokerUnreachable, naming every address and what is wrong there, when none did in time. Where every address
    was refused, by a port nobody listens on, a name that does not resolve or somebody who speaks another protocol, the
    time is `refusals_seconds`, if it is given.
    """
    addresses = parse_addresses(bootstrap_servers)
    began = time.monotonic()
    while True:
        refusals = _refusals(addresses, began + timeout_seconds)
        if refusals is None:
            return
        is_known = refusals_seconds is not None and all(each.is_answer for each in refusals.values())
        allowed = min(timeout_seconds, refusals_seconds) if is_known and refusals_seconds else timeout_seconds
        if time.monotonic() + _retry_seconds >= began + allowed:
            break
        time.sleep(_retry_seconds)
    reasons = "; ".join(f"{address}: {refused}" for address, refused in refusals.items())
    raise BrokerUnreachable(f"no Kafka broker within {allowed:g} s at {reasons}")


def _refusals(addresses: list[Address], deadline: float) -> dict[Address, _Refused] | None:
    """Why each address is of no use; None as soon as one of them is."""
    found = {}
    for address in addresses:
        try:
            _check(address, max(0.2, min(5.0, deadline - time.monotonic())))
        except _Refused as refused:
            found[address] = refused
        else:
            return None
    return found


def answers(address: Address, timeout_seconds: float) -> bool:
    """Whether a broker that is part of its cluster answers there now."""
    try:
        return bool(_advertised(address, timeout_seconds))
    except _Refused:
        return False


def _check(address: Address, timeout_seconds: float) -> None:
    advertised = _advertised(address, timeout_seconds)
    if not advertised:
        raise _Refused("a broker answers, but none is registered yet: wait for it to finish starting")
    unreachable = []
    for other in advertised:
        try:
            _connect(other, timeout_seconds).close()
        except _Refused as refused:
            unreachable.append(f"{other} ({refused})")
        else:
            return
    raise _Refused(
        "a broker answers, but the addresses it advertises cannot be reached from here: "
        + ", ".join(unreachable)
        + "; correct its advertised.listeners"
    )


def _connect(address: Address, timeout_seconds: float) -> socket.socket:
    try:
        return socket.create_connection((address.host, address.port), timeout_seconds)
    except socket.gaierror as error:
        raise _Refused(
            f"the name {address.host} does not resolve: check the spelling and DNS", is_answer=True
        ) from error
    except ConnectionRefusedError as error:
        raise _Refused(
            "connection refused, nothing listens there: start the broker or correct the address",
            is_answer=True,
        ) from error
    except TimeoutError as error:
        raise _Refused("no connection in time: check the host, the network and firewalls") from error
    except OSError as error:
        raise _Refused(
            f"cannot connect ({error.strerror or error}): check the host and the network"
        ) from error


def _advertised(address: Address, timeout_seconds: float) -> list[Address]:
    with _connect(address, timeout_seconds) as connection:
        connection.settimeout(timeout_seconds)
        try:
            connection.sendall(_metadata_request())
            start = _receive(connection, 8)
            _require_kafka(start)
            (length,) = struct.unpack(">i", start[:4])
            return _brokers(_receive(connection, length - 4))
        except TimeoutError as error:
            raise _Refused(
                "something accepts connections but does not answer: is it a Kafka broker?"
            ) from error
        except (OSError, EOFError) as error:
            raise _Refused(
                "the connection was closed without an answer: this is no Kafka listener for plain text, it may"
                f" expect TLS or SASL; {_only_plain}",
                is_answer=True,
            ) from error
        except (struct.error, UnicodeDecodeError, IndexError) as error:
            raise _Refused("the answer is not Kafka's: check the port", is_answer=True) from error


def _metadata_request() -> bytes:
    client_id = b"rollog-preflight"
    header = struct.pack(">hhih", _metadata_api_key, _metadata_version, _correlation_id, len(client_id))
    no_topics = struct.pack(">i", 0)
    request = header + client_id + no_topics
    return struct.pack(">i", len(request)) + request


def _receive(connection: socket.socket, length: int) -> bytes:
    received = bytearray()
    while len(received) < length:
        chunk = connection.recv(length - len(received))
        if not chunk:
            if received:
                _require_kafka(bytes(received))
            raise EOFError
        received += chunk
    return bytes(received)


def _require_kafka(start: bytes) -> None:
    if start[0] in {_tls_alert, _tls_handshake} and start[1:2] == b"\x03":
        raise _Refused(f"this listener speaks TLS; {_only_plain}", is_answer=True)
    if start.startswith(b"HTTP"):
        raise _Refused("an HTTP server answers, not a Kafka broker: check the port", is_answer=True)
    if len(start) < 8:  # noqa: PLR2004 - length and correlation id
        raise _Refused("the answer is not Kafka's: check the port", is_answer=True)
    length, correlation_id = struct.unpack(">ii", start[:8])
    if correlation_id != _correlation_id or not 8 <= length <= _largest_answer_bytes:  # noqa: PLR2004
        raise _Refused("the answer is not Kafka's: check the port", is_answer=True)


def _brokers(body: bytes) -> list[Address]:
    (count,) = struct.unpack_from(">i", body, 0)
    position, found = 4, []
    for _ in range(count):
        position += 4  # node id
        host, position = _string(body, position)
        (port,) = struct.unpack_from(">i", body, position)
        _, position = _string(body, position + 4)  # rack
        found.append(Address(host, port))
    return found


def _string(body: bytes, position: int) -> tuple[str, int]:
    (length,) = struct.unpack_from(">h", body, position)
    position += 2
    if length < 0:
        return "", position
    return body[position : position + length].decode(), position + length
