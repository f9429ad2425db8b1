"""Whether a broker answers at an address, and if not, why, in words.

Client libraries report every fault of a connection as the same time-out. This asks each address for the cluster's
metadata over a connection of its own, made as the settings say, and tells apart a name that does not resolve, a port
nobody listens on, a listener of another kind, a certificate or a user that is not taken, and a broker that advertises
addresses which cannot be reached from here.
"""

from __future__ import annotations

import struct
import time
from typing import TYPE_CHECKING

from rollog.kernel.addresses import public_address
from rollog.kernel.broker.handshake import Address, Refused, ask, connected, naming_faults
from rollog.kernel.broker.security import plain_text
from rollog.kernel.errors import BrokerRefused, BrokerUnreachable, ConfigError

if TYPE_CHECKING:
    from rollog.kernel.broker.security import SecuritySettings

_metadata_api_key = 3
_metadata_version = 1
_longest_try_seconds = 5.0
_shortest_try_seconds = 0.2
_retry_seconds = 0.2

__all__ = ["Address", "answers", "parse_addresses", "refusal", "wait_for_broker"]


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
    bootstrap_servers: str,
    timeout_seconds: float,
    *,
    refusals_seconds: float | None = None,
    security: SecuritySettings = plain_text,
) -> None:
    """Return as soon as one of the addresses answers as a Kafka broker does.

    Raises BrokerRefused at once where a broker answers and does not take these settings, and BrokerUnreachable, naming
    every address and what is wrong there, when none did in time. Where every address was refused, by a port nobody
    listens on, a name that does not resolve or somebody who speaks another protocol, the time is `refusals_seconds`, if
    it is given.
    """
    addresses = parse_addresses(bootstrap_servers)
    began = time.monotonic()
    while True:
        refusals = _refusals(addresses, security, began + timeout_seconds)
        if refusals is None:
            return
        if any(each.is_final for each in refusals.values()):
            raise BrokerRefused(_refused_at(refusals))
        is_known = refusals_seconds is not None and all(each.is_answer for each in refusals.values())
        allowed = min(timeout_seconds, refusals_seconds) if is_known and refusals_seconds else timeout_seconds
        if time.monotonic() + _retry_seconds >= began + allowed:
            break
        time.sleep(_retry_seconds)
    raise BrokerUnreachable(f"no Kafka broker within {allowed:g} s at {_reasons(refusals)}")


def refusal(bootstrap_servers: str, security: SecuritySettings) -> BrokerRefused | None:
    """The refusal of a broker that answers now and does not take these settings; None where none does so."""
    refusals = _refusals(
        parse_addresses(bootstrap_servers), security, time.monotonic() + _longest_try_seconds
    )
    if refusals is None or not any(each.is_final for each in refusals.values()):
        return None
    return BrokerRefused(_refused_at(refusals))


def _refused_at(refusals: dict[Address, Refused]) -> str:
    return f"the connection is refused at {_reasons({a: r for a, r in refusals.items() if r.is_final})}"


def _reasons(refusals: dict[Address, Refused]) -> str:
    return "; ".join(f"{address}: {refused}" for address, refused in refusals.items())


def _refusals(
    addresses: list[Address], security: SecuritySettings, deadline: float
) -> dict[Address, Refused] | None:
    """Why each address is of no use; None as soon as one of them is."""
    found = {}
    for address in addresses:
        left = deadline - time.monotonic()
        try:
            _check(address, security, max(_shortest_try_seconds, min(_longest_try_seconds, left)))
        except Refused as refused:
            found[address] = refused
        else:
            return None
    return found


def answers(address: Address, timeout_seconds: float) -> bool:
    """Whether a broker that is part of its cluster answers there now, in plain text."""
    try:
        return bool(_advertised(address, plain_text, timeout_seconds))
    except Refused:
        return False


def _check(address: Address, security: SecuritySettings, timeout_seconds: float) -> None:
    advertised = _advertised(address, security, timeout_seconds)
    if not advertised:
        raise Refused("a broker answers, but none is registered yet: wait for it to finish starting")
    unreachable = {}
    for other in advertised:
        try:
            if other != address:
                connected(other, security, timeout_seconds).close()
        except Refused as refused:
            unreachable[other] = refused
        else:
            return
    raise Refused(
        "a broker answers, but the addresses it advertises cannot be reached from here: "
        + ", ".join(f"{other} ({refused})" for other, refused in unreachable.items())
        + "; correct its advertised.listeners",
        is_final=all(refused.is_final for refused in unreachable.values()),
    )


def _advertised(address: Address, security: SecuritySettings, timeout_seconds: float) -> list[Address]:
    with connected(address, security, timeout_seconds) as connection:
        connection.settimeout(timeout_seconds)
        with naming_faults(address, security, timeout_seconds):
            no_topics = struct.pack(">i", 0)
            return _brokers(ask(connection, _metadata_api_key, _metadata_version, no_topics))


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
