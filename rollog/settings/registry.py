"""The schema registry beside the broker, for runs with `broker.framing = "registry"`."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from rollog.kernel.errors import ConfigError
from rollog.kernel.registry.client import RegistryAddress, RegistryClient, basic_credentials
from rollog.settings.section import FIXED, PER_MACHINE, SECRET, Section


class RegistryConfig(Section):
    """The schema registry, for runs with `broker.framing = "registry"`."""

    url: Annotated[str | None, SECRET] = None
    """Where Confluent's REST API answers, `https://host:port/path`; of Apicurio it ends with `/apis/ccompat/v7`. Each
    role needs it from its own file or environment: no manifest says where credentials are sent."""
    credentials_variable: Annotated[str | None, SECRET] = None
    """Name of the environment variable that holds `user:password` or `Bearer TOKEN`."""
    credentials_file: Annotated[str | None, SECRET] = None
    """File whose one line is `user:password` or `Bearer TOKEN`, in place of `credentials_variable`; read again for each
    question to the registry, so that a token can be replaced."""
    certificates: Annotated[str | None, PER_MACHINE] = None
    """File of certificates (PEM) that an `https` registry's is checked against; left out, those of the system."""
    timeout_seconds: Annotated[float, Field(gt=0, le=60), PER_MACHINE] = 5.0
    """Time that the registry has for one whole answer."""
    subjects: Annotated[Literal["topic", "record"], FIXED] = "topic"
    """How subjects are named: `topic` after the topic, `<topic>-value`, with the record's name behind it where a topic
    holds several types; `record` after the record alone, for all runs together."""

    @model_validator(mode="after")
    def _credentials_are_named_once(self) -> Self:
        if self.credentials_variable is not None and self.credentials_file is not None:
            raise ValueError(
                "registry.credentials_variable and registry.credentials_file both say where the credentials are; "
                "leave one out"
            )
        return self

    def address(self) -> RegistryAddress | None:
        """Where to ask and as whom; None where no registry is named."""
        if self.url is None:
            return None
        has_credentials = self.credentials_variable is not None or self.credentials_file is not None
        return RegistryAddress(
            url=self.url,
            credentials=partial(_credentials, self) if has_credentials else None,
            certificates=self.certificates,
            timeout_seconds=self.timeout_seconds,
        )

    def client(self, run: str, *, remedy: str = "registry.url (ROLLOG_REGISTRY__URL)") -> RegistryClient:
        """The registry of `run`, which has one; `remedy` is how it is named. Asks nothing.

        Raises ConfigError where none is named, and for an address that cannot be used.
        """
        address = self.address()
        if address is None:
            raise ConfigError(
                f'run {run!r} has broker.framing = "registry": say where its schema registry is with {remedy}'
            )
        return RegistryClient(address)


def _credentials(config: RegistryConfig) -> str:
    if config.credentials_file is None:
        place = "registry.credentials_variable"
        line = os.environ.get(config.credentials_variable or "", "").strip()
    else:
        place = "registry.credentials_file"
        try:
            line = Path(config.credentials_file).expanduser().read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(
                f"{place} cannot be read: {getattr(error, 'strerror', None) or 'no text'}"
            ) from None
    if line.startswith("Bearer ") and line.isascii() and line.isprintable():
        return line
    if ":" not in line or not line.isprintable():
        raise ConfigError(f"{place} holds no credentials: one line, `user:password` or `Bearer TOKEN`")
    return basic_credentials(line)
