"""How rollog connects to a secured cluster: protocol, certificates, who it is. Knows no Kafka client.

A secret is never a value here, it is the place where it stands: an environment variable, a file, or an entry of a
Java-style properties file. It is read anew whenever a client is made, so that what was changed there counts from then
on; and what shows or compares these settings cannot show it.
"""

from __future__ import annotations

import importlib.util
import os
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from rollog.kernel.addresses import public_address
from rollog.kernel.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_longest_secret_bytes = 64 << 10
table = "broker.security"
"""Where these settings stand in a file; messages name it."""


class Protocol(StrEnum):
    """What is spoken below Kafka's own protocol, by Kafka's names."""

    PLAINTEXT = "PLAINTEXT"
    SSL = "SSL"
    SASL_PLAINTEXT = "SASL_PLAINTEXT"
    SASL_SSL = "SASL_SSL"

    @property
    def has_tls(self) -> bool:
        """Whether it is encrypted, and the broker shows a certificate."""
        return self in {Protocol.SSL, Protocol.SASL_SSL}

    @property
    def has_sasl(self) -> bool:
        """Whether a client says who it is by SASL."""
        return self in {Protocol.SASL_PLAINTEXT, Protocol.SASL_SSL}


class Mechanism(StrEnum):
    """How a client says who it is by SASL."""

    PLAIN = "PLAIN"
    SCRAM_SHA_256 = "SCRAM-SHA-256"
    SCRAM_SHA_512 = "SCRAM-SHA-512"
    OAUTHBEARER = "OAUTHBEARER"
    AWS_MSK_IAM = "AWS_MSK_IAM"

    @property
    def has_password(self) -> bool:
        """Whether it needs a user name and a password."""
        return self in {Mechanism.PLAIN, Mechanism.SCRAM_SHA_256, Mechanism.SCRAM_SHA_512}


@dataclass(frozen=True, slots=True)
class Secret:
    """The place where a secret stands; `key` is what it is for, as messages name it."""

    key: str
    variable: str | None = None
    file: Path | None = None
    find: Callable[[str], str] | None = None
    """Takes the secret out of the text of `file`; None: it is all of the text."""

    def read(self) -> str:
        """The secret as it stands there now. Raises ConfigError, which names the place."""
        text = self._of_variable(self.variable) if self.variable is not None else self._of_file()
        if not text:
            raise ConfigError(f"{self.key} is empty in {self}: write the secret there")
        return text

    def __str__(self) -> str:
        """The place, for messages."""
        if self.variable is not None:
            return f"environment variable {self.variable}"
        return f"file {self.file}"

    def _of_variable(self, variable: str) -> str:
        try:
            return os.environ[variable]
        except KeyError as error:
            raise ConfigError(
                f"{self.key}: {self} is not set; set it, or name a file as {self.key}_file"
            ) from error

    def _of_file(self) -> str:
        assert self.file is not None
        text = read_text(self.file, self.key)
        return text.removesuffix("\n").removesuffix("\r") if self.find is None else self.find(text)


def secret(key: str, *, variable: str | None, file: Path | None) -> Secret | None:
    """Where the secret stands that `key` is named after; None where no place is given. Raises ConfigError for two."""
    if variable is not None and file is not None:
        raise ConfigError(f"{key}_env and {key}_file are both set: leave one of them out")
    if variable is None and file is None:
        return None
    return Secret(key, variable, file)


@dataclass(frozen=True, slots=True, kw_only=True)
class OAuthSettings:
    """Where tokens of OAUTHBEARER come from: an endpoint that is asked with client credentials, or a file."""

    token_url: str | None = None
    client_id: str | None = None
    client_secret: Secret | None = None
    scope: str | None = None
    ca_file: Path | None = None
    """Who has signed the endpoint's certificate; None: whom the system trusts."""
    token: Secret | None = None
    """A token that somebody else keeps fresh, as Kubernetes does in a file."""

    def check(self) -> None:
        """Raises ConfigError for what no token can be had with."""
        if self.token is not None:
            return
        if self.token_url is None:
            raise ConfigError(
                f"{table}.mechanism = OAUTHBEARER needs a token: set oauth_token_url with oauth_client_id and"
                " oauth_client_secret_env or _file, or oauth_token_file"
            )
        shown = public_address(self.token_url)
        if urlsplit(self.token_url).scheme != "https":
            raise ConfigError(
                f"{table}.oauth_token_url = {shown!r} is not https: the client's secret would be sent in the clear"
            )
        if self.client_id is None or self.client_secret is None:
            raise ConfigError(
                f"{table}.oauth_token_url = {shown!r} is asked with oauth_client_id and oauth_client_secret_env or"
                " _file: set both"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class SecuritySettings:
    """How clients connect. Making one raises ConfigError for what does not fit together."""

    protocol: Protocol = Protocol.PLAINTEXT
    mechanism: Mechanism | None = None
    ca_file: Path | None = None
    """PEM file of whoever signed the brokers' certificates; None: whom the system trusts."""
    certificate_file: Path | None = None
    """PEM file of the client's own certificate."""
    key_file: Path | None = None
    """PEM file of its key; None: it is in `certificate_file`."""
    key_passphrase: Secret | None = None
    check_hostname: bool = True
    """Whether the broker's certificate must name the host that is connected to."""
    username: str | None = None
    password: Secret | None = None
    oauth: OAuthSettings | None = None

    def __post_init__(self) -> None:
        """Check what belongs together."""
        self._check_tls()
        if not self.protocol.has_sasl:
            if self.mechanism is not None or self.username is not None or self.password is not None:
                raise ConfigError(
                    f"{table}.protocol = {self.protocol} has no users, but a mechanism, user or password is set: set"
                    " protocol to SASL_SSL, or leave them out"
                )
            return
        if self.mechanism is None:
            raise ConfigError(
                f"{table}.protocol = {self.protocol} needs {table}.mechanism: {', '.join(Mechanism)}"
            )
        self._check_mechanism(self.mechanism)

    def _check_tls(self) -> None:
        files = {
            "ca_file": self.ca_file,
            "certificate_file": self.certificate_file,
            "key_file": self.key_file,
        }
        for key, path in files.items():
            if path is None:
                continue
            if not self.protocol.has_tls:
                raise ConfigError(
                    f"{table}.{key} is set, but protocol = {self.protocol} has no TLS: set protocol to"
                    f" {'SASL_SSL' if self.protocol.has_sasl else 'SSL'}, or leave {key} out"
                )
        if self.key_file is not None and self.certificate_file is None:
            raise ConfigError(f"{table}.key_file is set without certificate_file: name the certificate, too")

    def _check_mechanism(self, mechanism: Mechanism) -> None:
        if mechanism.has_password and (self.username is None or self.password is None):
            raise ConfigError(
                f"{table}.mechanism = {mechanism} needs a user: set username, and password_file or password_env"
            )
        if mechanism is Mechanism.OAUTHBEARER:
            (self.oauth or OAuthSettings()).check()
        if mechanism is Mechanism.AWS_MSK_IAM:
            if self.protocol is not Protocol.SASL_SSL:
                raise ConfigError(
                    f"{table}.mechanism = AWS_MSK_IAM needs {table}.protocol = SASL_SSL, not {self.protocol}"
                )
            if importlib.util.find_spec("botocore") is None:
                raise ConfigError(
                    f"{table}.mechanism = AWS_MSK_IAM needs the package botocore, which is not installed:"
                    " `pip install botocore`"
                )


plain_text = SecuritySettings()
"""Neither TLS nor users, as the embedded broker has it."""


def read_text(path: Path, key: str) -> str:
    """The text of a small file that `key` names. Raises ConfigError."""
    try:
        with path.open("rb") as file:
            data = file.read(_longest_secret_bytes + 1)
        text = data.decode()
    except FileNotFoundError as error:
        raise ConfigError(f"{key}: there is no file {path}; correct the path or write it") from error
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise ConfigError(f"{key}: file {path} cannot be read ({reason}): correct it or its rights") from None
    if len(data) > _longest_secret_bytes:
        raise ConfigError(f"{key}: file {path} is larger than {_longest_secret_bytes} bytes: name another")
    return text
