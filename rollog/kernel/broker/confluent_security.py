"""What librdkafka is told of a secured cluster."""

from __future__ import annotations

import ssl
import time
from typing import TYPE_CHECKING, Any

from rollog.kernel.broker.security import Mechanism

if TYPE_CHECKING:
    from collections.abc import Callable

    from rollog.kernel.broker.security import OAuthSettings, SecuritySettings

_ask_again_seconds = 60.0
"""The library asks for a token again when four fifths of this are over; who gives it keeps one while it is good."""


def security_settings(security: SecuritySettings) -> dict[str, Any]:
    """Settings of librdkafka; secrets are read now. Raises ConfigError."""
    settings: dict[str, Any] = {"security.protocol": str(security.protocol)}
    if security.protocol.has_tls:
        settings |= _tls(security)
    if security.protocol.has_sasl:
        settings |= _sasl(security)
    return settings


def _tls(security: SecuritySettings) -> dict[str, Any]:
    settings = {
        "ssl.ca.location": str(security.ca_file)
        if security.ca_file is not None
        else _trusted_by_the_system(),
        "ssl.endpoint.identification.algorithm": "https" if security.check_hostname else "none",
    }
    if security.certificate_file is not None:
        settings["ssl.certificate.location"] = str(security.certificate_file)
        settings["ssl.key.location"] = str(security.key_file or security.certificate_file)
    if security.key_passphrase is not None:
        settings["ssl.key.password"] = security.key_passphrase.read()
    return settings


def _trusted_by_the_system() -> str:
    """The certificates that Python trusts: OpenSSL in the library's wheel looks in the places of another system."""
    paths = ssl.get_default_verify_paths()
    return paths.cafile or paths.capath or "probe"


def _sasl(security: SecuritySettings) -> dict[str, Any]:
    settings: dict[str, Any] = {"sasl.mechanisms": str(security.mechanism)}
    match security.mechanism:
        case Mechanism.OAUTHBEARER:
            assert security.oauth is not None
            settings["oauth_cb"] = _asking(security.oauth)
        case Mechanism.PLAIN | Mechanism.SCRAM_SHA_256 | Mechanism.SCRAM_SHA_512:
            assert security.password is not None
            settings["sasl.username"] = security.username
            settings["sasl.password"] = security.password.read()
    return settings


def _asking(oauth: OAuthSettings) -> Callable[[str], tuple[str, float]]:
    from rollog.kernel.broker.oauth_tokens import token_provider  # noqa: PLC0415  # few need it

    provider = token_provider(oauth)

    def token(_: str) -> tuple[str, float]:
        return provider.token(), time.time() + _ask_again_seconds

    return token
