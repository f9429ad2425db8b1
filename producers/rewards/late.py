"""Rewards from outside of a run: what a program uses that scores samples when they are there already.

Produces `rewards`. A reward is written when `flush` returns; one that is written twice counts once. On a crash the
program sends again whatever it is not sure of. What stands before a record is what the manifest of the run says: with
`broker.framing = "registry"` the id of its schema, and the registry is asked for that once.

    with late_rewards("localhost:9092", run="first", scorer="tests of a pull request") as rewards:
        rewards.send("g12.r3.a0", 1.0, components={"passed": 7.0})
        rewards.flush()
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from rollog.kernel.broker.denials import naming_rights
from rollog.kernel.broker.kafka import KafkaBroker
from rollog.kernel.broker.rights import Role
from rollog.kernel.broker.topics import RunTopics
from rollog.kernel.lifecycle import Component
from rollog.kernel.registry.framed_broker import FramedBroker
from rollog.kernel.registry.registration import registered_schemas
from rollog.kernel.registry.schema_ids import SchemaIds
from rollog.kernel.registry.subjects import subjects_of
from rollog.kernel.runs import find_run
from rollog.rules.late_rewards import require_size
from rollog.settings.security import security_settings
from rollog.settings.settings import Settings
from rollog.settings.sources import registry_config, security_config
from schemas import Reward
from schemas.catalogue import load_catalogue
from schemas.codec import encode
from schemas.headers import headers_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rollog.kernel.broker.ports import Broker
    from rollog.settings.registry import RegistryConfig

_remedy = 'late_rewards(..., registry={"url": ...}) or ROLLOG_REGISTRY__URL'


class LateRewards(Component):
    """Writes the rewards of one run, as `scorer`."""

    def __init__(self, broker: Broker, topics: RunTopics, *, scorer: str = "") -> None:
        self._broker = broker
        self._topics = topics
        self._scorer = scorer
        self._producer = broker.producer(client_id="late-rewards")

    def send(
        self,
        sample_id: str,
        reward: float,
        *,
        components: Mapping[str, float] | None = None,
        turn_rewards: Sequence[float] = (),
    ) -> None:
        """Send the reward of one sample; `turn_rewards` has one number for each of its turns, or none.

        Raises SchemaError for what is no finite number and for more than 64 KiB, TopicMismatch where the run has no
        late rewards, NotAuthorized where this client may not write them.
        """
        record = Reward(
            sample_id=sample_id,
            reward=reward,
            components=dict(components or {}),
            turn_rewards=tuple(turn_rewards),
            scorer=self._scorer,
        )
        value = encode(record)
        require_size(value)
        with naming_rights(self._broker, Role.SCORER, self._topics):
            self._producer.send(self._topics.rewards, 0, value, headers=headers_of(record))

    def flush(self, timeout_seconds: float = 30.0) -> None:
        """Wait until everything sent so far is written. Raises BrokerTimeout, or the first failure."""
        with naming_rights(self._broker, Role.SCORER, self._topics):
            self._producer.flush(timeout_seconds)

    def close(self) -> None:
        """Close the producer; what was sent and not flushed may be lost."""
        self._producer.close()


def late_rewards(
    bootstrap_servers: str,
    *,
    run: str,
    prefix: str = "rollog",
    scorer: str = "",
    security: Mapping[str, object] | None = None,
    registry: Mapping[str, object] | None = None,
) -> LateRewards:
    """A writer of rewards for a run at that broker.

    `security` has the keys of `broker.security`, `registry` those of `registry` for a run that has one; variables
    ROLLOG_BROKER__SECURITY__KEY and ROLLOG_REGISTRY__KEY win over them. Raises RunNotFound, NotAuthorized,
    BrokerUnreachable, BrokerRefused and ConfigError; RegistryUnreachable and RegistryRefused where the registry does
    not give the id.
    """
    settings = security_settings(security_config(security, os.environ))
    broker = KafkaBroker(bootstrap_servers, security=settings)
    topics = RunTopics(prefix, run)
    framed = framed_for_rewards(broker, topics, registry_config(registry, os.environ))
    return LateRewards(framed, topics, scorer=scorer)


def framed_for_rewards(broker: Broker, topics: RunTopics, registry: RegistryConfig) -> Broker:
    """The broker as a writer of rewards uses it; where the run has a registry, it knows the id of their schema.

    Raises RunNotFound, NotAuthorized, ConfigError where no registry is named, RegistryUnreachable, RegistryRefused.
    """
    with naming_rights(broker, Role.SCORER, topics):
        manifest = find_run(broker, topics.prefix, topics.run)
    settings = Settings.from_manifest(manifest.config_json)
    if not (settings.has_registry and settings.reward.late):
        return broker
    client = registry.client(topics.run, remedy=_remedy)
    subjects = subjects_of([topics.rewards], settings.registry.subjects, load_catalogue())
    ids = SchemaIds(client, subjects)
    # Now rather than at the first reward: whoever names a wrong registry is told at once.
    ids.learn(registered_schemas(client, subjects))
    return FramedBroker(broker, ids)
