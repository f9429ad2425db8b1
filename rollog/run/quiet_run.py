"""Whether anybody works for a run: for commands that change what a role would miss."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from rollog.kernel.broker.ports import TopicPartition
from rollog.kernel.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

    from rollog.kernel.broker.ports import Broker
    from rollog.kernel.broker.topics import RunTopics
    from rollog.settings.settings import Settings

_least_quiet_seconds = 6.0
"""Three heartbeats of dispatcher or trainer."""
_num_heartbeats = 3


def quiet_seconds_of(settings: Settings) -> float:
    """Three heartbeats of any role: nobody works for a run who is not heard for so long."""
    return max(_least_quiet_seconds, _num_heartbeats * settings.rollout.heartbeat_seconds)


def require_quiet(
    broker: Broker,
    topics: RunTopics,
    *,
    done: str,
    quiet_seconds: float,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Listen for heartbeats. Raises ConfigError where there are some; `done` says what is not done then."""
    place = TopicPartition(topics.workers, 0)
    with broker.consumer(client_id="quiet") as consumer:
        before = consumer.end_offsets([place])[place]
        sleep(quiet_seconds)
        after = consumer.end_offsets([place])[place]
    if after != before:
        raise ConfigError(
            f"run {topics.run} is not {done}: {after - before} heartbeats came to {topics.workers} "
            f"within {quiet_seconds:g} s, so a role works for it; end its roles first "
            f"(`rollog watch --run {topics.run}` names them)"
        )
