"""A run whose schemas stand in a registry, over a broker in memory or any other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rollog.kernel.broker.records_by_topic import records_by_topic
from rollog.kernel.broker.topics import RunTopics, topic_specs
from rollog.kernel.registry.client import RegistryAddress, RegistryClient
from rollog.kernel.registry.framed_broker import FramedBroker
from rollog.kernel.registry.registration import register_subjects
from rollog.kernel.registry.schema_ids import SchemaIds
from rollog.kernel.registry.subjects import subjects_of
from rollog.settings.run import BrokerConfig
from schemas.catalogue import load_catalogue

if TYPE_CHECKING:
    from collections.abc import Callable

    from rollog.kernel.broker.ports import Broker
    from support.small_registry import SmallRegistry


def registered_run(
    broker: Broker,
    registry: SmallRegistry,
    topics: RunTopics,
    *,
    timeout_seconds: float = 5.0,
    wait_seconds: float = 60.0,
    **options: Callable[..., Any],
) -> FramedBroker:
    """The broker as the roles of a run with a registry use it; its topics exist and its schemas are registered.

    Readers wait `wait_seconds` for the registry. `options` are the clock of the ids and the sleep of the consumers.
    """
    names = [f"{topics.prefix}.{topics.run}.{name}" for name in records_by_topic if name != "runs"]
    subjects = subjects_of(names, "topic", load_catalogue())
    client = RegistryClient(RegistryAddress(url=registry.url, timeout_seconds=timeout_seconds))
    clock = {"clock": options["clock"]} if "clock" in options else {}
    ids = SchemaIds(client, subjects, wait_seconds=wait_seconds, **clock)
    ids.learn(register_subjects(client, subjects))
    with broker.admin() as admin:
        admin.create_topics(topic_specs(topics, BrokerConfig(framing="registry")))
    sleep = {"sleep": options["sleep"]} if "sleep" in options else {}
    return FramedBroker(broker, ids, **sleep)
