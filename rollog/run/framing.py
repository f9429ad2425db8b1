"""What `broker.framing = "registry"` means for a run: its subjects, and a broker that frames its records."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from rollog.kernel.broker.topics import RunTopics, run_topic_names
from rollog.kernel.errors import RegistryUnreachable
from rollog.kernel.logs import get_logger
from rollog.kernel.registry.client import RegistryClient
from rollog.kernel.registry.framed_broker import FramedBroker
from rollog.kernel.registry.registration import register_subjects, registered_schemas
from rollog.kernel.registry.schema_ids import SchemaIds
from rollog.kernel.registry.subjects import subjects_of
from schemas.catalogue import load_catalogue

if TYPE_CHECKING:
    from collections.abc import Callable

    from rollog.kernel.broker.ports import Broker
    from rollog.kernel.registry.registration import RegisteredSchema
    from rollog.kernel.registry.subjects import Subject
    from rollog.settings.settings import Settings

log = get_logger("registry")

_pause_seconds = 0.5


def subjects_of_run(settings: Settings) -> list[Subject]:
    """The subjects of the run with these settings, whatever its framing. Raises ConfigError where it has no name."""
    topics = RunTopics(settings.run.prefix, settings.run_name)
    names = run_topic_names(topics, settings.optional_topics)
    return subjects_of(names, settings.registry.subjects, load_catalogue())


def framed_broker(broker: Broker, settings: Settings) -> Broker:
    """The broker as whoever takes part in the run, or reads it, is to use it. Asks nothing of the registry.

    Raises ConfigError for a malformed address and for credentials that are not where they are said to be.
    """
    if not settings.has_registry:
        return broker
    address = settings.registry.address()
    ids = None if address is None else SchemaIds(RegistryClient(address), subjects_of_run(settings))
    return FramedBroker(broker, ids)


def broker_of_any_run(broker: Broker) -> Broker:
    """The broker for reading runs whose framing is not known yet: rollog's own records say what wrote them."""
    return FramedBroker(broker, None)


def register_schemas(settings: Settings) -> list[RegisteredSchema]:
    """Register the schemas of the run; nothing, where it has no registry.

    Raises ConfigError where none is named, RegistryRefused, RegistryUnreachable.
    """
    if not settings.has_registry:
        return []
    return register_subjects(settings.registry.client(settings.run_name), subjects_of_run(settings))


def check_schemas(settings: Settings) -> list[RegisteredSchema]:
    """Every schema of the run with its id in the registry; nothing, where it has none. Raises as `register_schemas`."""
    if not settings.has_registry:
        return []
    return registered_schemas(settings.registry.client(settings.run_name), subjects_of_run(settings))


def checked_at_start(
    broker: Broker,
    settings: Settings,
    wait_seconds: float,
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Make sure that all schemas of a run are registered, waiting for a registry that does not answer yet.

    `broker` is the run's; it knows all ids afterwards, so that it writes without the registry. Raises as
    `register_schemas`.
    """
    if not isinstance(broker, FramedBroker):
        return
    deadline = clock() + wait_seconds
    while True:
        try:
            found = check_schemas(settings)
        except RegistryUnreachable as error:
            if clock() >= deadline:
                raise
            log.warning("the schema registry does not answer", error=error)
            sleep(_pause_seconds)
        else:
            break
    assert broker.ids is not None
    broker.ids.learn(found)
    log.info("schemas are registered", num_schemas=len(found))


def registry_variables(settings: Settings) -> dict[str, str]:
    """Environment variables that tell the roles which are started here what the manifest does not."""
    config = settings.registry
    said = {
        "URL": config.url,
        "CREDENTIALS_VARIABLE": config.credentials_variable,
        "CREDENTIALS_FILE": config.credentials_file,
        "CERTIFICATES": config.certificates,
        "TIMEOUT_SECONDS": str(config.timeout_seconds),
    }
    if not settings.has_registry:
        return {}
    return {f"ROLLOG_REGISTRY__{key}": value for key, value in said.items() if value is not None}
