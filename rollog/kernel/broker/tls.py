"""The TLS context of a client, and what a failure of TLS means in words."""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING

from rollog.kernel.broker.security import table
from rollog.kernel.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

    from rollog.kernel.broker.security import SecuritySettings

_expired = 10
_not_yet_valid = 9
_self_signed = frozenset({18, 19})
_unknown_issuer = frozenset({2, 20, 21})
_other_name = frozenset({62, 64})
_client_alerts = (
    "BAD_CERTIFICATE",
    "CERTIFICATE_UNKNOWN",
    "CERTIFICATE_REQUIRED",
    "CERTIFICATE_EXPIRED",
    "UNKNOWN_CA",
    "UNSUPPORTED_CERTIFICATE",
    "CERTIFICATE_REVOKED",
    "ACCESS_DENIED",
)


def client_context(security: SecuritySettings) -> ssl.SSLContext:
    """The context that `security` asks for. Raises ConfigError, naming the file that cannot be used."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.check_hostname = security.check_hostname
    trust(context, security.ca_file, f"{table}.ca_file")
    if security.certificate_file is not None:
        _show_certificate(context, security)
    return context


def trust(context: ssl.SSLContext, ca_file: Path | None, key: str) -> None:
    """Trust whom the file names, else whom the system trusts. Raises ConfigError."""
    if ca_file is None:
        context.load_default_certs()
        return
    try:
        context.load_verify_locations(ca_file)
    except FileNotFoundError as error:
        raise ConfigError(f"{key}: there is no file {ca_file}; correct the path") from error
    except (ssl.SSLError, OSError) as error:
        raise ConfigError(
            f"{key}: {ca_file} holds no PEM certificate ({_reason(error)}): name one"
        ) from error


def _show_certificate(context: ssl.SSLContext, security: SecuritySettings) -> None:
    certificate, key = security.certificate_file, security.key_file
    assert certificate is not None
    for name, path in (("certificate_file", certificate), ("key_file", key)):
        if path is not None and not path.is_file():
            raise ConfigError(f"{table}.{name}: there is no file {path}; correct the path")
    # Without this OpenSSL would ask on the terminal.
    phrase = security.key_passphrase.read() if security.key_passphrase is not None else ""
    try:
        context.load_cert_chain(certificate, key, password=phrase)
    except (ssl.SSLError, OSError) as error:
        held = f"{certificate} and {key}" if key is not None else f"{certificate}"
        raise ConfigError(
            f"{table}.certificate_file: {held} cannot be used ({_reason(error)}): they must be PEM, belong together,"
            " and a sealed key needs its key_passphrase_file or _env"
        ) from None


def certificate_fault(error: ssl.SSLCertVerificationError, host: str, security: SecuritySettings) -> str:
    """Why the broker's certificate was not taken, and what helps."""
    trusted = f"{table}.ca_file = {security.ca_file}" if security.ca_file else "what this system trusts"
    code = error.verify_code
    if code == _expired:
        return (
            "the broker's certificate has expired: renew it on the broker (and see that this clock is right)"
        )
    if code == _not_yet_valid:
        return "the broker's certificate is not valid yet: see that this clock and the broker's are right"
    if code in _other_name:
        return (
            f"the broker's certificate is not for the host {host}: connect to a name that it is for, have one made for"
            f" {host}, or set {table}.check_hostname = false where that is safe"
        )
    if code in _self_signed | _unknown_issuer:
        return (
            f"the broker's certificate is signed by nobody in {trusted}: set {table}.ca_file to the"
            " certificate (PEM) of whoever signed it"
        )
    return f"the broker's certificate was not taken ({error.verify_message}): see {trusted}"


def client_certificate_fault(error: ssl.SSLError, security: SecuritySettings) -> str | None:
    """Why the broker did not take this client's certificate; None where the error says nothing of it."""
    if not any(alert in (error.reason or "") for alert in _client_alerts):
        return None
    if security.certificate_file is None:
        return f"the broker wants a client certificate: set {table}.certificate_file and key_file"
    return (
        f"the broker did not take this client's certificate {security.certificate_file} ({error.reason}): use one that"
        " is valid and signed by whom the broker trusts"
    )


def _reason(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        return error.reason or "not PEM"
    return getattr(error, "strerror", None) or type(error).__name__
