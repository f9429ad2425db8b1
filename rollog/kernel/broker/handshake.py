"""A connection to one broker as a client makes it: TCP, TLS, SASL; and what went wrong, in words.

The library of a client reports every fault of these as the same time-out. Here each has its cause and its remedy, and
an answer that asking again does not change is told from a broker that is away.
"""

from __future__ import annotations

import socket
import ssl
import struct
import warnings
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rollog.kernel.broker.kafka_security import mechanism_settings
from rollog.kernel.broker.security import Mechanism, Protocol, table
from rollog.kernel.broker.tls import certificate_fault, client_certificate_fault, client_context
from rollog.kernel.errors import BrokerRefused, BrokerUnreachable
from rollog.kernel.printable import printable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rollog.kernel.broker.security import SecuritySettings

_client_id = b"rollog-preflight"
_correlation_id = 7_310_157
_largest_answer_bytes = 8 << 20
_longest_message = 300
_api_versions_key = 18
_handshake_key = 17
_authenticate_key = 36
_tls_alert = 0x15
_tls_handshake = 0x16
_bytes_before_body = 4
_length_and_correlation = 8
_max_rounds = 10

_unsupported_mechanism = 33
_illegal_sasl_state = 34


@dataclass(frozen=True, slots=True, order=True)
class Address:
    """Host and port of one broker."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Refused(Exception):
    """Why one address is of no use.

    `is_answer` where somebody has answered, and asking again is of little use; `is_final` where the broker itself, or
    its certificate, does not fit these settings, and asking again is of none.
    """

    def __init__(self, reason: str, *, is_answer: bool = False, is_final: bool = False) -> None:
        super().__init__(reason)
        self.is_answer = is_answer or is_final
        self.is_final = is_final


def connected(address: Address, security: SecuritySettings, timeout_seconds: float) -> socket.socket:
    """A connection over which requests are answered. Raises Refused, ConfigError for files that cannot be used."""
    connection = tcp(address, timeout_seconds)
    try:
        if security.protocol.has_tls:
            connection = _with_tls(connection, address, security, timeout_seconds)
        if security.protocol.has_sasl:
            with _named(address, security, timeout_seconds):
                _authenticate(connection, address, security)
    except BaseException:
        connection.close()
        raise
    return connection


def tcp(address: Address, timeout_seconds: float) -> socket.socket:
    """A bare connection. Raises Refused."""
    try:
        return socket.create_connection((address.host, address.port), timeout_seconds)
    except socket.gaierror as error:
        raise Refused(
            f"the name {address.host} does not resolve: check the spelling and DNS", is_answer=True
        ) from error
    except ConnectionRefusedError as error:
        raise Refused(
            "connection refused, nothing listens there: start the broker or correct the address",
            is_answer=True,
        ) from error
    except TimeoutError as error:
        raise Refused("no connection in time: check the host, the network and firewalls") from error
    except OSError as error:
        raise Refused(
            f"cannot connect ({error.strerror or error}): check the host and the network"
        ) from error


def ask(connection: socket.socket, key: int, version: int, body: bytes) -> bytes:
    """The body of the answer to one request. Raises Refused where it is not Kafka's, OSError and EOFError."""
    request = struct.pack(">hhih", key, version, _correlation_id, len(_client_id)) + _client_id + body
    connection.sendall(struct.pack(">i", len(request)) + request)
    start = _receive(connection, _length_and_correlation)
    _require_kafka(start)
    (length,) = struct.unpack(">i", start[:4])
    return _receive(connection, length - 4)


@contextmanager
def naming_faults(address: Address, security: SecuritySettings, timeout_seconds: float) -> Iterator[None]:
    """What goes wrong with the first request on a connection that was made, as Refused."""
    with _named(address, security, timeout_seconds):
        yield


@contextmanager
def _named(address: Address, security: SecuritySettings, timeout_seconds: float) -> Iterator[None]:
    try:
        yield
    except TimeoutError as error:
        raise Refused("something accepts connections but does not answer: is it a Kafka broker?") from error
    except ssl.SSLError as error:
        reason = client_certificate_fault(error, security)
        if reason is not None:
            raise Refused(reason, is_final=True) from error
        raise _closed(address, security, timeout_seconds) from error
    except (OSError, EOFError) as error:
        raise _closed(address, security, timeout_seconds) from error
    except (struct.error, UnicodeDecodeError, IndexError) as error:
        raise Refused("the answer is not Kafka's: check the port", is_answer=True) from error


def _with_tls(
    raw: socket.socket, address: Address, security: SecuritySettings, timeout_seconds: float
) -> ssl.SSLSocket:
    context = client_context(security)
    try:
        return context.wrap_socket(raw, server_hostname=address.host.rstrip("."))
    except ssl.SSLCertVerificationError as error:
        raise Refused(certificate_fault(error, address.host, security), is_final=True) from error
    except TimeoutError as error:
        raise Refused(
            "something accepts connections but does not answer to TLS: is it a Kafka broker with TLS?"
        ) from error
    except OSError as error:
        if isinstance(error, ssl.SSLError):
            reason = client_certificate_fault(error, security)
            if reason is not None:
                raise Refused(reason, is_final=True) from error
        raise _no_tls(address, error, timeout_seconds) from error


def _no_tls(address: Address, error: OSError, timeout_seconds: float) -> Refused:
    """Why TLS came to nothing, but for certificates: the listener may speak plain text."""
    if _answers_versions(address, None, timeout_seconds):
        return Refused(
            f"this listener speaks plain text, but {table}.protocol asks for TLS: name a listener with TLS, or set"
            f" {table}.protocol to {Protocol.PLAINTEXT} or {Protocol.SASL_PLAINTEXT}",
            is_final=True,
        )
    reason = error.reason if isinstance(error, ssl.SSLError) else error.strerror
    return Refused(
        f"TLS with this listener came to nothing ({reason or type(error).__name__}): see that it is a listener with"
        " TLS, of version 1.2 or later",
        is_answer=True,
    )


def _closed(address: Address, security: SecuritySettings, timeout_seconds: float) -> Refused:
    """Why a connection was closed in place of an answer; asks the listener what it is."""
    if not security.protocol.has_tls and _speaks_tls(address, timeout_seconds):
        return _wants_tls()
    if not security.protocol.has_sasl:
        mechanisms = _mechanisms(address, security, timeout_seconds)
        if mechanisms:
            wanted = Protocol.SASL_SSL if security.protocol.has_tls else Protocol.SASL_PLAINTEXT
            return Refused(
                f"this listener wants to know who connects ({', '.join(mechanisms)}): set {table}.protocol to"
                f" {wanted} with mechanism, username and password_file",
                is_final=True,
            )
    if security.protocol.has_tls and not security.protocol.has_sasl:
        held = security.certificate_file
        return Refused(
            "the connection was closed after TLS was set up: the broker "
            + (f"did not take the client certificate {held}" if held else "may want a client certificate")
            + f"; see {table}.certificate_file and key_file, and the broker's log",
            is_answer=True,
        )
    return Refused(
        "the connection was closed without an answer: this is no Kafka listener for"
        f" {table}.protocol = {security.protocol}, it may expect TLS or SASL; check the port and the broker's log",
        is_answer=True,
    )


def _wants_tls() -> Refused:
    return Refused(
        f"this listener speaks TLS, but {table}.protocol asks for none: set it to {Protocol.SSL} or"
        f" {Protocol.SASL_SSL}, or name a listener for plain text",
        is_final=True,
    )


def _authenticate(connection: socket.socket, address: Address, security: SecuritySettings) -> None:
    """SASL to its end. Raises Refused where the broker says no."""
    from kafka.net.sasl import get_sasl_mechanism  # noqa: PLC0415  # few connections need it

    _agree_on_mechanism(connection, security)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        mechanism: Any = get_sasl_mechanism(str(security.mechanism))(
            host=address.host, security_protocol=str(security.protocol), **mechanism_settings(security)
        )
    for _ in range(_max_rounds):
        if mechanism.is_done():
            break
        token = _own_token(mechanism, security)
        body = ask(connection, _authenticate_key, 0, struct.pack(">i", len(token)) + token)
        (error_code,) = struct.unpack_from(">h", body, 0)
        message, position = _text(body, 2)
        if error_code:
            raise Refused(_who_was_refused(security, message), is_final=True)
        (length,) = struct.unpack_from(">i", body, position)
        try:
            mechanism.receive(body[position + 4 : position + 4 + max(0, length)])
        except (ValueError, KeyError) as error:
            # Whoever does not know the password cannot sign: this is not the broker it says it is.
            raise Refused(
                f"the broker does not prove that it knows user {security.username!r} ({error}): check the address, and"
                " who answers there",
                is_final=True,
            ) from error
    if not mechanism.is_authenticated():
        raise Refused(_who_was_refused(security, ""), is_final=True)


def _agree_on_mechanism(connection: socket.socket, security: SecuritySettings) -> None:
    name = str(security.mechanism).encode()
    body = ask(connection, _handshake_key, 1, struct.pack(">h", len(name)) + name)
    (error_code,) = struct.unpack_from(">h", body, 0)
    if error_code == _illegal_sasl_state:
        raise Refused(
            f"this listener takes no users, but {table}.protocol = {security.protocol} has one: name a listener with"
            f" SASL, or set {table}.protocol to {Protocol.SSL if security.protocol.has_tls else Protocol.PLAINTEXT}",
            is_final=True,
        )
    if error_code:
        offered = ", ".join(_texts(body, 2)) or "none that it names"
        raise Refused(
            f"the broker does not take {table}.mechanism = {security.mechanism}; it takes {offered}: set one of these",
            is_final=True,
        )


def _own_token(mechanism: Any, security: SecuritySettings) -> bytes:
    """What the client says next. Raises Refused where it has nothing to say with."""
    try:
        return bytes(mechanism.auth_bytes())
    except BrokerRefused as error:
        raise Refused(str(error), is_final=True) from error
    except BrokerUnreachable as error:
        raise Refused(str(error)) from error
    except Exception as error:
        if security.mechanism is not Mechanism.AWS_MSK_IAM:
            raise
        # botocore has nothing to sign with; its own text names no secret, but says little.
        raise Refused(
            f"no credentials of AWS to connect with ({type(error).__name__}): set AWS_DEFAULT_REGION and give this"
            " process a role or AWS_PROFILE",
            is_final=True,
        ) from error


def _who_was_refused(security: SecuritySettings, message: str) -> str:
    said = f" ({printable(message, limit=_longest_message)})" if message else ""
    match security.mechanism:
        case Mechanism.OAUTHBEARER:
            assert security.oauth is not None
            place = security.oauth.token or security.oauth.client_id
            return (
                f"the broker does not take the token{said}: see what it is made for ({table}.oauth_scope, {place}),"
                " and that the clocks agree"
            )
        case Mechanism.AWS_MSK_IAM:
            return (
                f"the broker does not take these credentials of AWS{said}: give them kafka-cluster:Connect on the"
                " cluster"
            )
        case _:
            return (
                f"the broker does not take the password of user {security.username!r}{said}: correct"
                f" {table}.username, or the password in {security.password}"
            )


def _mechanisms(address: Address, security: SecuritySettings, timeout_seconds: float) -> list[str]:
    """The mechanisms that a listener for users names; none where it is another, or no listener."""
    if not _answers_versions(address, security, timeout_seconds):
        return []
    try:
        with _probe(address, security, timeout_seconds) as connection:
            name = b"NONE"
            body = ask(connection, _handshake_key, 1, struct.pack(">h", len(name)) + name)
            (error_code,) = struct.unpack_from(">h", body, 0)
            return _texts(body, 2) if error_code == _unsupported_mechanism else []
    except (Refused, OSError, EOFError, struct.error, UnicodeDecodeError):
        return []


def _answers_versions(address: Address, security: SecuritySettings | None, timeout_seconds: float) -> bool:
    """Whether a broker says there which versions it speaks, which it does before it asks who is there."""
    try:
        with _probe(address, security, timeout_seconds) as connection:
            ask(connection, _api_versions_key, 0, b"")
    except (Refused, OSError, EOFError, struct.error):
        return False
    return True


@contextmanager
def _probe(
    address: Address, security: SecuritySettings | None, timeout_seconds: float
) -> Iterator[socket.socket]:
    """A connection that says nothing of who is there; in plain text without `security`."""
    with tcp(address, timeout_seconds) as raw:
        if security is None or not security.protocol.has_tls:
            yield raw
            return
        with client_context(security).wrap_socket(
            raw, server_hostname=address.host.rstrip(".")
        ) as connection:
            yield connection


def _speaks_tls(address: Address, timeout_seconds: float) -> bool:
    """Whether TLS can be set up there. Nothing is sent over it, so nobody has to be trusted."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    try:
        with tcp(address, timeout_seconds) as raw, context.wrap_socket(raw, server_hostname=address.host):
            return True
    except (Refused, OSError):
        return False


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
        raise _wants_tls()
    if start.startswith(b"HTTP"):
        raise Refused("an HTTP server answers, not a Kafka broker: check the port", is_answer=True)
    if len(start) < _length_and_correlation:
        raise Refused("the answer is not Kafka's: check the port", is_answer=True)
    length, correlation_id = struct.unpack(">ii", start[:_length_and_correlation])
    if correlation_id != _correlation_id or not _bytes_before_body < length <= _largest_answer_bytes:
        raise Refused("the answer is not Kafka's: check the port", is_answer=True)


def _text(body: bytes, position: int) -> tuple[str, int]:
    (length,) = struct.unpack_from(">h", body, position)
    position += 2
    if length < 0:
        return "", position
    return body[position : position + length].decode(), position + length


def _texts(body: bytes, position: int) -> list[str]:
    (count,) = struct.unpack_from(">i", body, position)
    position, found = position + 4, []
    for _ in range(count):
        text, position = _text(body, position)
        found.append(printable(text, limit=_longest_message))
    return found
