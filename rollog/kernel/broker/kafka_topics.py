"""Administration of topics over kafka-python, and a directory of what producers and consumers ask about topics."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import kafka.errors as kafka_errors
from kafka.admin import ConfigResource, ConfigResourceType, NewTopic
from kafka.structs import TopicPartition as KafkaTopicPartition

from rollog.kernel.broker.kafka_errors import translating
from rollog.kernel.broker.kafka_rights import missing_rights
from rollog.kernel.broker.limits import dead_letter_margin_bytes
from rollog.kernel.broker.ports import TopicSpec
from rollog.kernel.broker.requirements import refusal, unmet_needs
from rollog.kernel.broker.topics import broker_defaults, not_created
from rollog.kernel.errors import BrokerError, BrokerUnreachable, ConfigError, TopicMismatch
from rollog.kernel.lifecycle import Component

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from rollog.kernel.broker.ports import TopicPartition
    from rollog.kernel.broker.refusal_watch import RefusalWatch
    from rollog.kernel.broker.rights import Right

_Answer = TypeVar("_Answer")

_visible_timeout_seconds = 20.0
_ask_again_seconds = 60.0
_denied_code = kafka_errors.TopicAuthorizationFailedError.errno
_not_allowed = (
    kafka_errors.PolicyViolationError,
    kafka_errors.InvalidConfigurationError,
    kafka_errors.InvalidPartitionsError,
    kafka_errors.InvalidReplicationFactorError,
)
"""What a cluster says of a topic that it will not have as it is asked for."""


class KafkaAdmin(Component):
    """Topics of a Kafka cluster. Raises ConfigError for one that cannot carry a run (`broker/requirements.py`)."""

    def __init__(self, client: Any, refusals: RefusalWatch) -> None:
        self._client = client
        self._refusals = refusals
        self._is_closed = False
        unmet = unmet_needs({int(key): versions for key, versions in client.api_versions().items()})
        if unmet:
            address, version = ",".join(client.config["bootstrap_servers"]), self.broker_version()
            self.close()
            raise ConfigError(refusal(address, version, unmet))

    def create_topics(self, specs: Sequence[TopicSpec]) -> list[str]:
        """Create those that are missing and wait until they have leaders; returns the names created."""
        self._require_open()
        existing = set(self.list_topics())
        created = [spec.name for spec in specs if spec.name not in existing and self._create(spec)]
        if created:
            seconds = _visible_timeout_seconds
            wait = partial(self._client.wait_for_topics, created, timeout_ms=round(seconds * 1000))
            self._ask(f"waiting for leaders of {', '.join(created)}", wait)
        return created

    def _create(self, spec: TopicSpec) -> bool:
        """Whether it was missing."""
        return self._ask(f"creating topic {spec.name}", partial(self._try_to_create, spec))

    def _try_to_create(self, spec: TopicSpec) -> bool:
        topic = NewTopic(
            name=spec.name,
            num_partitions=spec.num_partitions,
            replication_factor=spec.replication_factor,
            topic_configs=dict(spec.config),
        )
        try:
            self._client.create_topics([topic])
        except kafka_errors.TopicAlreadyExistsError:
            return False
        except _not_allowed as error:
            raise BrokerError(not_created(spec, str(error))) from error
        return True

    def describe_topics(self, names: Sequence[str]) -> dict[str, TopicSpec]:
        """What exists of `names`, with the settings rollog has an opinion on."""
        self._require_open()
        if not names:
            return {}
        return self._ask(f"describing topics {', '.join(names)}", partial(self._described, list(names)))

    def _described(self, names: list[str]) -> dict[str, TopicSpec]:
        described = self._client.describe_topics(names)
        found = [topic for topic in described if topic["error_code"] == 0]
        if denied := {topic["name"] for topic in described if topic["error_code"] == _denied_code}:
            # Without the right to see a topic nobody is told whether it exists.
            raise kafka_errors.TopicAuthorizationFailedError(", ".join(sorted(denied)))
        configs = self._configs([topic["name"] for topic in found])
        return {
            topic["name"]: TopicSpec(
                name=topic["name"],
                num_partitions=len(topic["partitions"]),
                replication_factor=min(len(p["replica_nodes"]) for p in topic["partitions"]),
                config=configs[topic["name"]],
            )
            for topic in found
        }

    def _configs(self, names: list[str]) -> dict[str, dict[str, str]]:
        """The settings of each topic; empty where this client may not ask for them."""
        if not names:
            return {}
        resources = [ConfigResource(ConfigResourceType.TOPIC, name, list(broker_defaults)) for name in names]
        answer = self._client.describe_configs(resources, config_filter="all").get("topic", {})
        return {name: {key: entry["value"] for key, entry in answer.get(name, {}).items()} for name in names}

    def list_topics(self) -> list[str]:
        """Names of all topics but Kafka's own."""
        self._require_open()
        listed = self._ask("listing topics", self._client.list_topics)
        return sorted(name for name in listed if not name.startswith("__"))

    def delete_topics(self, names: Sequence[str]) -> None:
        """Delete those of `names` that exist, with all their records."""
        self._require_open()
        doing = f"deleting topics {', '.join(names)}"
        listed = set(self._ask(doing, self._client.list_topics))
        existing = [name for name in names if name in listed]
        if existing:
            self._ask(doing, partial(self._client.delete_topics, existing))

    def delete_records(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Delete the records below these offsets, partition by partition."""
        self._require_open()
        for place, offset in offsets.items():
            doing = f"deleting records of {place.topic} partition {place.partition} below offset {offset}"
            if self._num_partitions(place.topic) <= place.partition:
                raise TopicMismatch(f"{doing}: there is no such partition")
            below = {KafkaTopicPartition(place.topic, place.partition): offset}
            self._ask(doing, partial(self._client.delete_records, below))

    def _num_partitions(self, topic: str) -> int:
        found = self.describe_topics([topic])
        return found[topic].num_partitions if topic in found else 0

    def missing_rights(self, rights: Sequence[Right]) -> list[Right]:
        """Those of `rights`, none of a prefix, that this client does not have as far as the cluster tells."""
        self._require_open()
        return self._ask("asking for rights", partial(missing_rights, self._client, rights))

    def broker_version(self) -> str:
        """Release line of the broker as its protocol versions show it, for example `4.3`."""
        self._require_open()
        version = self._client._manager.broker_version  # noqa: SLF001 - not offered otherwise
        return ".".join(map(str, version)) if version else "unknown"

    def close(self) -> None:
        """End the connection."""
        if not self._is_closed:
            self._is_closed = True
            self._client.close()

    def _ask(self, doing: str, call: Callable[[], _Answer]) -> _Answer:
        """What a call of the library returns. Raises BrokerError: a refusal in place of what says `disconnected`."""
        return self._refusals.during(translating(doing)(call))

    def _require_open(self) -> None:
        if self._is_closed:
            raise ValueError("this admin client is closed")


@dataclass(frozen=True, slots=True)
class TopicFacts:
    """What a producer or consumer has to know of a topic before it uses it."""

    num_partitions: int
    record_limit_bytes: int


class TopicDirectory:
    """Answers for each topic once, so that a missing one is an error at once and not a time-out.

    It also tells the largest record a topic takes: the broker's refusal of a record would come with the loss of
    every other record in flight. Shared by the clients of one broker object; may be used from several threads.
    """

    def __init__(self, new_admin: Callable[[], KafkaAdmin], max_record_bytes: int) -> None:
        self._new_admin = new_admin
        self._max_record_bytes = max_record_bytes
        self._facts: dict[str, TopicFacts] = {}
        self._lock = threading.Lock()

    def facts(self, topic: str) -> TopicFacts:
        """Raises TopicMismatch for a topic that does not exist."""
        with self._lock:
            if topic not in self._facts:
                self._facts[topic] = self._ask(topic)
            return self._facts[topic]

    def require(self, topic: str, partition: int) -> TopicFacts:
        """As `facts`; raises TopicMismatch also for a partition that does not exist."""
        facts = self.facts(topic)
        if not 0 <= partition < facts.num_partitions:
            raise TopicMismatch(
                f"topic {topic} has partitions 0 to {facts.num_partitions - 1}, not {partition}:"
                " check that the configuration is that of the run"
            )
        return facts

    def confirm(self, topic: str) -> None:
        """Ask the broker once whether a topic that was there still is.

        Raises TopicMismatch where it is not, and whatever keeps the broker from answering.
        """
        with self._new_admin() as admin:
            if topic not in admin.describe_topics([topic]):
                raise _missing(topic)

    def _ask(self, topic: str) -> TopicFacts:
        spec = self._described(topic)
        if spec is None:
            raise _missing(topic)
        limit = int(spec.config.get("max.message.bytes", self._max_record_bytes))
        return TopicFacts(
            num_partitions=spec.num_partitions,
            record_limit_bytes=min(limit, self._max_record_bytes + dead_letter_margin_bytes),
        )

    def _described(self, topic: str) -> TopicSpec | None:
        """A connection that breaks between two requests is made again: whoever asks is in the middle of a run."""
        deadline = time.monotonic() + _ask_again_seconds
        while True:
            with self._new_admin() as admin:
                try:
                    return admin.describe_topics([topic]).get(topic)
                except BrokerUnreachable:
                    if time.monotonic() > deadline:
                        raise


def _missing(topic: str) -> TopicMismatch:
    return TopicMismatch(f"topic {topic} does not exist: create it with `rollog topics create`")
