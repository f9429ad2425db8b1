"""Rewards from outside of a run: what a program uses that scores samples when they are there already.

Produces `rewards`. A reward is written when `flush` returns; one that is written twice counts once. On a crash the
program sends again whatever it is not sure of.

    with late_rewards("localhost:9092", run="first", scorer="tests of a pull request") as rewards:
        rewards.send("g12.r3.a0", 1.0, components={"passed": 7.0})
        rewards.flush()
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from rollog.kernel.broker.kafka import KafkaBroker
from rollog.kernel.broker.topics import RunTopics
from rollog.kernel.lifecycle import Component
from rollog.rules.late_rewards import require_size
from rollog.settings.security import security_settings
from rollog.settings.sources import security_config
from schemas import Reward
from schemas.codec import encode
from schemas.headers import headers_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rollog.kernel.broker.ports import Broker


class LateRewards(Component):
    """Writes the rewards of one run, as `scorer`."""

    def __init__(self, broker: Broker, topics: RunTopics, *, scorer: str = "") -> None:
        self._topic = topics.rewards
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
        late rewards.
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
        self._producer.send(self._topic, 0, value, headers=headers_of(record))

    def flush(self, timeout_seconds: float = 30.0) -> None:
        """Wait until everything sent so far is written. Raises BrokerTimeout, or the first failure."""
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
) -> LateRewards:
    """A writer of rewards for a run at that broker.

    `security` has the keys of `broker.security`; variables ROLLOG_BROKER__SECURITY__KEY win over them. Raises
    BrokerUnreachable, BrokerRefused and ConfigError.
    """
    settings = security_settings(security_config(security, os.environ))
    return LateRewards(
        KafkaBroker(bootstrap_servers, security=settings), RunTopics(prefix, run), scorer=scorer
    )
