"""Which client library writes to Kafka and which reads, by the setting `broker.client`.

| `broker.client` | writes and transacts | reads | administers |
| --- | --- | --- | --- |
| `auto` | confluent-kafka where it is installed, else kafka-python | kafka-python | kafka-python |
| `confluent` | confluent-kafka | confluent-kafka | kafka-python |
| `kafka-python` | kafka-python | kafka-python | kafka-python |

`auto` does not read with confluent-kafka: librdkafka bounds what a fetched batch inflates to for zstd only, so whoever
may write to a topic could use up the memory of those who read it. docs/kafka-clients.md has the rest.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from typing import Literal

from rollog.kernel.broker.security import Mechanism, SecuritySettings, plain_text, table
from rollog.kernel.errors import ConfigError

ClientName = Literal["auto", "confluent", "kafka-python"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Clients:
    """What confluent-kafka is used for; kafka-python does the rest."""

    confluent_writes: bool
    confluent_reads: bool


def clients_of(name: ClientName, security: SecuritySettings = plain_text) -> Clients:
    """What the setting means on this machine.

    Raises ConfigError where the library named is not installed, or does not know the mechanism of `security`.
    """
    if security.mechanism is Mechanism.AWS_MSK_IAM:
        if name == "confluent":
            raise ConfigError(
                f'broker.client is "confluent", which cannot do {table}.mechanism = AWS_MSK_IAM: set broker.client to'
                ' "auto" or "kafka-python"'
            )
        return Clients(confluent_writes=False, confluent_reads=False)
    is_installed = find_spec("confluent_kafka") is not None
    if name == "confluent" and not is_installed:
        raise ConfigError(
            'broker.client is "confluent", but confluent-kafka is not installed: pip install "rollog[confluent]", or'
            ' set broker.client to "auto" or "kafka-python"'
        )
    return Clients(
        confluent_writes=is_installed and name in {"auto", "confluent"},
        confluent_reads=name == "confluent",
    )
