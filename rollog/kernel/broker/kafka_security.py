"""What kafka-python is told of a secured cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rollog.kernel.broker.security import Mechanism

if TYPE_CHECKING:
    from rollog.kernel.broker.security import SecuritySettings


def security_settings(security: SecuritySettings) -> dict[str, Any]:
    """kafka-python's settings; secrets are read now. Raises ConfigError.

    Certificates are given as files, which the library reads at every connection: renewed ones count at once.
    """
    settings: dict[str, Any] = {"security_protocol": str(security.protocol)}
    if security.protocol.has_tls:
        settings |= _tls(security)
    if security.protocol.has_sasl:
        settings |= mechanism_settings(security)
    return settings


def mechanism_settings(security: SecuritySettings) -> dict[str, Any]:
    """The part of SASL alone, as the library's mechanisms take it."""
    settings: dict[str, Any] = {"sasl_mechanism": str(security.mechanism)}
    match security.mechanism:
        case Mechanism.OAUTHBEARER:
            from rollog.kernel.broker.oauth_tokens import token_provider  # noqa: PLC0415  # few need it

            assert security.oauth is not None
            settings["sasl_oauth_token_provider"] = token_provider(security.oauth)
        case Mechanism.PLAIN | Mechanism.SCRAM_SHA_256 | Mechanism.SCRAM_SHA_512:
            assert security.password is not None
            settings["sasl_plain_username"] = security.username
            settings["sasl_plain_password"] = security.password.read()
    return settings


def _tls(security: SecuritySettings) -> dict[str, Any]:
    def text(path: object) -> str | None:
        return None if path is None else str(path)

    phrase = security.key_passphrase
    return {
        "ssl_check_hostname": security.check_hostname,
        "ssl_cafile": text(security.ca_file),
        "ssl_certfile": text(security.certificate_file),
        "ssl_keyfile": text(security.key_file),
        # An empty phrase keeps OpenSSL from asking on the terminal.
        "ssl_password": phrase.read() if phrase is not None else "",
    }
