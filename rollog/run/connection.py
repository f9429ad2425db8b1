"""The broker a command talks to: the one named, or the embedded one of the state directory."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from rollog.kernel.broker.embedded import EmbeddedKafka
from rollog.kernel.broker.kafka import KafkaBroker
from rollog.kernel.broker.security import plain_text
from rollog.kernel.errors import BrokerUnreachable, ConfigError
from rollog.settings.security import security_settings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from rollog.kernel.broker.security import SecuritySettings
    from rollog.settings.run import BrokerConfig


_refusals_seconds = 2.0


def connect(config: BrokerConfig, home: Path, *, wait_seconds: float = 0.0) -> KafkaBroker:
    """The configured broker, else the embedded one that runs for `home`.

    Raises BrokerUnreachable where there is none, or none answers within `broker.connect_timeout_seconds`. Where the
    connection is refused, whoever waits `wait_seconds` for a run waits as long for its broker, at least 2 s.
    """
    security = security_of(config)
    address = config.bootstrap_servers or EmbeddedKafka.running(data_directory(home))
    if address is None:
        # Not a fault of the settings: whoever starts roles starts this one again until there is one.
        raise BrokerUnreachable(
            f"no broker is named and none runs in {data_directory(home)}; name one with --broker HOST:PORT, start one "
            f"with `rollog broker --home {home}`{_or_resume(home)}"
        )
    return KafkaBroker(
        address,
        connect_timeout_seconds=config.connect_timeout_seconds,
        max_record_bytes=config.max_record_bytes,
        first_refusals_seconds=max(_refusals_seconds, wait_seconds),
        client=config.client,
        security=security,
    )


def broker_at(
    address: str, config: BrokerConfig, *, offsets_timeout_seconds: float | None = None
) -> KafkaBroker:
    """Another connection to a broker that was found, with limits of its own. Raises ConfigError."""
    broker = KafkaBroker(
        address,
        connect_timeout_seconds=config.connect_timeout_seconds,
        client=config.client,
        security=security_of(config),
    )
    return broker.with_limits(offsets_timeout_seconds=offsets_timeout_seconds)


def security_of(config: BrokerConfig) -> SecuritySettings:
    """How clients connect to the broker that is named; an embedded one is on loopback, in plain text.

    Raises ConfigError for what does not fit together.
    """
    security = security_settings(config.security)
    if config.bootstrap_servers is None and security != plain_text:
        raise ConfigError(
            f"broker.security.protocol = {security.protocol}, but no broker is named, and the embedded one speaks plain"
            " text: name one with --broker HOST:PORT, or leave broker.security out"
        )
    return security


def _or_resume(home: Path) -> str:
    """What else helps where there are runs already, so that one of them can be meant."""
    if not data_directory(home).is_dir():
        return ""
    return f", or go on with a run of it: `rollog resume RUN --home {home}`"


@contextmanager
def embedded_unless_named(
    config: BrokerConfig,
    home: Path,
    tell: Callable[[str], None] = lambda _: None,
    *,
    has_runs: bool = False,
) -> Iterator[EmbeddedKafka | None]:
    """An embedded broker for as long as the block lasts, unless one is named or runs already.

    `tell` is told what its start does. With `has_runs` it is for runs that are there already: raises ConfigError where
    the state directory holds no broker's data, and makes none.
    """
    if has_runs and config.bootstrap_servers is None and not data_directory(home).is_dir():
        found = (
            f"no runs in the state directory {home}" if home.is_dir() else f"no state directory here ({home})"
        )
        raise ConfigError(f"{found}; name one with --home, or a broker with --broker HOST:PORT")
    security_of(config)
    if config.bootstrap_servers or EmbeddedKafka.running(data_directory(home)):
        yield None
        return
    with EmbeddedKafka(data_directory(home), cache_directory(home), tell=tell) as kafka:
        yield kafka


def data_directory(home: Path) -> Path:
    """Where the embedded broker of a state directory keeps its log."""
    return home / "kafka"


def cache_directory(home: Path) -> Path:
    """Where downloads and everything else that can be made again is kept."""
    return home / "cache"
