"""Settings of a secured connection: the table `broker.security`, and what the kernel and other roles make of it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from rollog.kernel.broker.java_properties import security_of_properties
from rollog.kernel.broker.security import (
    Mechanism,
    OAuthSettings,
    Protocol,
    SecuritySettings,
    plain_text,
    secret,
    table,
)
from rollog.kernel.errors import ConfigError

_Variable = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
_secrets = ("password", "key_passphrase", "oauth_client_secret", "oauth_token")
_variable_prefix = "ROLLOG_BROKER__SECURITY__"


class SecurityConfig(BaseModel):
    """How clients connect to the brokers.

    A secret is never written here: name the file or the environment variable that holds it.
    """

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        use_attribute_docstrings=True,
        hide_input_in_errors=True,
    )

    protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] | None = None
    """What the listener speaks, by Kafka's name; left out, `PLAINTEXT`."""
    mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER", "AWS_MSK_IAM"] | None = None
    """How a client says who it is, where the protocol has SASL."""
    ca_file: str | None = None
    """PEM file with the certificates of whoever signed the brokers'; left out, whom the system trusts."""
    certificate_file: str | None = None
    """PEM file of the client's own certificate, with those between it and its signer."""
    key_file: str | None = None
    """PEM file of its key; left out, it is in `certificate_file`."""
    key_passphrase_file: str | None = None
    """File with the passphrase of a sealed key."""
    key_passphrase_env: _Variable | None = None
    """The same as a variable of the environment."""
    check_hostname: bool | None = None
    """Whether the broker's certificate must name the host that is connected to; left out, it must."""
    username: str | None = None
    """User for `PLAIN` and `SCRAM`; the API key of a hosted cluster."""
    password_file: str | None = None
    """File with the password (an API key's secret); read again whenever a client is made."""
    password_env: _Variable | None = None
    """The same as a variable of the environment."""
    oauth_token_url: str | None = None
    """Endpoint (`https://`) that gives tokens for client credentials."""
    oauth_client_id: str | None = None
    """Who asks it."""
    oauth_client_secret_file: str | None = None
    """File with the client's secret."""
    oauth_client_secret_env: _Variable | None = None
    """The same as a variable of the environment."""
    oauth_scope: str | None = None
    """Scope that is asked for."""
    oauth_ca_file: str | None = None
    """PEM file of whoever signed the endpoint's certificate; left out, whom the system trusts."""
    oauth_token_file: str | None = None
    """File with a token that somebody else keeps fresh, in place of an endpoint; read at each connection."""
    oauth_token_env: _Variable | None = None
    """The same as a variable of the environment."""
    properties_file: str | None = None
    """A Java client's properties file, in place of all other keys ([secured clusters](security.md))."""

    @model_validator(mode="before")
    @classmethod
    def _refuse_secrets(cls, values: Any) -> Any:
        """What is written in a file of settings is seen by too many."""
        for key in _secrets:
            if isinstance(values, dict) and key in values:
                raise ValueError(
                    f"{table}.{key} is not read from settings: write it into a file and name that as {key}_file, or"
                    f" name a variable of the environment as {key}_env"
                )
        return values

    @model_validator(mode="after")
    def _refuse_both(self) -> SecurityConfig:
        """A properties file says everything."""
        given = [key for key in type(self).model_fields if getattr(self, key) is not None]
        if self.properties_file is not None and len(given) > 1:
            others = ", ".join(key for key in given if key != "properties_file")
            raise ValueError(
                f"{table}.properties_file says everything, but {others} is set, too; leave one out"
            )
        return self


def security_settings(config: SecurityConfig | None) -> SecuritySettings:
    """What the kernel connects with.

    Raises ConfigError for what does not fit together, and for a properties file that cannot be used.
    """
    if config is None:
        return plain_text
    if config.properties_file is not None:
        return security_of_properties(_path(config.properties_file))
    return SecuritySettings(
        protocol=Protocol(config.protocol or Protocol.PLAINTEXT),
        mechanism=None if config.mechanism is None else Mechanism(config.mechanism),
        ca_file=_optional(config.ca_file),
        certificate_file=_optional(config.certificate_file),
        key_file=_optional(config.key_file),
        check_hostname=config.check_hostname is not False,
        username=config.username,
        oauth=_oauth(config),
        **{name: _secret(config, name) for name in ("password", "key_passphrase")},
    )


def security_variables(config: SecurityConfig | None) -> dict[str, str]:
    """The same settings as variables of the environment, for processes that are started: places, never secrets."""
    if config is None:
        return {}
    given = config.model_dump(exclude_none=True)
    return {f"{_variable_prefix}{key.upper()}": _text(key, value) for key, value in given.items()}


def _text(key: str, value: Any) -> str:
    """A value as `sources` reads it: text in quotes, so that a user called 1234 stays one."""
    if isinstance(value, bool):
        return "true" if value else "false"
    shown = str(_path(value)) if key.endswith("_file") else str(value)
    escaped = "".join(
        f"\\u{ord(each):04x}" if ord(each) < 32 or each in '"\\' else each  # noqa: PLR2004 - control characters
        for each in shown
    )
    return f'"{escaped}"'


def _oauth(config: SecurityConfig) -> OAuthSettings | None:
    if config.mechanism != Mechanism.OAUTHBEARER:
        if any(value is not None for key, value in config if key.startswith("oauth_")):
            raise ConfigError(
                f"{table} has keys of OAuth, but mechanism = {config.mechanism}: set it to OAUTHBEARER, or leave them"
                " out"
            )
        return None
    return OAuthSettings(
        token_url=config.oauth_token_url,
        client_id=config.oauth_client_id,
        client_secret=_secret(config, "oauth_client_secret"),
        scope=config.oauth_scope,
        ca_file=_optional(config.oauth_ca_file),
        token=_secret(config, "oauth_token"),
    )


def _secret(config: SecurityConfig, name: str) -> Any:
    file, variable = getattr(config, f"{name}_file"), getattr(config, f"{name}_env")
    return secret(f"{table}.{name}", variable=variable, file=_optional(file))


def _optional(path: str | None) -> Path | None:
    return None if path is None else _path(path)


def _path(path: str) -> Path:
    return Path(path).expanduser().absolute()
