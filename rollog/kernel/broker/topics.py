"""The topics of a run: names, settings, creation and the check at start.

Append time is the broker's everywhere, because a worker's wrong clock must not expire segments. Nothing is ever
deleted by age; only `workers` and `<prefix>.runs` are compacted.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

from rollog.kernel.broker.limits import (
    dead_letter_margin_bytes,
    default_record_limit_bytes,
    largest_record_limit_bytes,
    registry_margin_bytes,
    smallest_record_limit_bytes,
)
from rollog.kernel.broker.ports import TopicSpec
from rollog.kernel.errors import ConfigError, NotAuthorized, TopicMismatch

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from rollog.kernel.broker.ports import Admin

broker_defaults: Mapping[str, str] = {
    "cleanup.policy": "delete",
    "message.timestamp.type": "CreateTime",
    "retention.ms": "604800000",
    "retention.bytes": "-1",
    "max.message.bytes": str(default_record_limit_bytes),
    "min.insync.replicas": "1",
    "segment.bytes": "1073741824",
    "segment.ms": "604800000",
}
"""Every topic setting rollog has an opinion on, with the value Apache Kafka gives it when nobody does."""

_record_limit = "max.message.bytes"
_at_least = frozenset({_record_limit, "min.insync.replicas"})
_not_checked = frozenset({"segment.bytes", "segment.ms"})
_compacted_segment_bytes = 8 << 20
_compacted_segment_ms = 600_000


class OptionalTopic(StrEnum):
    """Topics that a run has only where its settings ask for them."""

    TURNS = "turns"
    REWARDS = "rewards"


@dataclass(frozen=True, slots=True)
class RunTopics:
    """Names of everything one run owns on the broker."""

    prefix: str
    run: str

    def _named(self, name: str) -> str:
        return f"{self.prefix}.{self.run}.{name}"

    @property
    def tasks(self) -> str:
        """Orders to the rollout workers; one partition per worker incarnation."""
        return self._named("tasks")

    @property
    def samples(self) -> str:
        """Finished, failed, cancelled, expired and lost rollouts."""
        return self._named("samples")

    @property
    def turns(self) -> str:
        """Model calls of rollouts under way, where `dispatch.durable_turns` keeps them."""
        return self._named("turns")

    @property
    def rewards(self) -> str:
        """Rewards of samples that came without one; only of runs with `reward.late`."""
        return self._named("rewards")

    @property
    def evaluations(self) -> str:
        """Rollouts of held-out prompts."""
        return self._named("evaluations")

    @property
    def steps(self) -> str:
        """The ledger."""
        return self._named("steps")

    @property
    def weights(self) -> str:
        """Notices of published weights."""
        return self._named("weights")

    @property
    def control(self) -> str:
        """Dispatcher epochs, grants, revocations, end of data and of run."""
        return self._named("control")

    @property
    def workers(self) -> str:
        """Heartbeats of the rollout workers, compacted by worker."""
        return self._named("workers")

    @property
    def dead_letters(self) -> str:
        """Records that could not be used, with place and reason."""
        return self._named("dead-letters")

    @property
    def trainer_group(self) -> str:
        """Consumer group of the trainer ranks."""
        return self._named("trainer")

    @property
    def worker_group(self) -> str:
        """Consumer group under which rollout workers show how far they have read their tasks."""
        return self._named("workers")

    @property
    def dispatcher_transactional_id(self) -> str:
        """Whoever holds it is the one dispatcher of the run."""
        return self._named("dispatcher")

    @property
    def trainer_transactional_id(self) -> str:
        """Whoever holds it is the one trainer of the run."""
        return self._named("trainer")

    @property
    def manifest_transactional_id(self) -> str:
        """Whoever holds it writes the manifest of the run, or takes it out of the register."""
        return manifest_transactional_ids(self.prefix) + self.run

    @property
    def reinjection_transactional_id(self) -> str:
        """Whoever holds it writes dead letters of the run again."""
        return reinjection_transactional_ids(self.prefix) + self.run


def runs_topic(prefix: str) -> str:
    """Topic with the manifest of every run under `prefix`, compacted by run."""
    return f"{prefix}.runs"


def manifest_transactional_ids(prefix: str) -> str:
    """What the transactional ids of all that register runs under `prefix` begin with, and no others."""
    return f"{prefix}.runs/"


def reinjection_transactional_ids(prefix: str) -> str:
    """What the transactional ids of all that write dead letters of runs under `prefix` again begin with."""
    return f"{prefix}.dead-letters/"


def run_topic_names(topics: RunTopics, optional: Collection[OptionalTopic] = ()) -> list[str]:
    """The topics that a run has; the shared topic of manifests is not among them."""
    return [
        topics.tasks,
        topics.samples,
        topics.evaluations,
        topics.steps,
        topics.weights,
        topics.control,
        topics.workers,
        topics.dead_letters,
        *([topics.turns] if OptionalTopic.TURNS in optional else []),
        *([topics.rewards] if OptionalTopic.REWARDS in optional else []),
    ]


class TopicSizes(Protocol):
    """What the settings of a run say about its topics (`rollog.settings.run.BrokerConfig`)."""

    @property
    def samples_partitions(self) -> int:
        """Partitions of `samples` and `evaluations`."""
        ...

    @property
    def max_workers(self) -> int:
        """Partitions of `tasks`."""
        ...

    @property
    def replication_factor(self) -> int:
        """Replicas of each topic."""
        ...

    @property
    def min_insync_replicas(self) -> int:
        """Replicas that must have a record before it is acknowledged."""
        ...

    @property
    def max_record_bytes(self) -> int:
        """Largest record, in bytes."""
        ...

    @property
    def framing(self) -> str:
        """What stands before the body of each record: `single-object` or `registry`."""
        ...


def topic_specs(
    topics: RunTopics, broker: TopicSizes, optional: Collection[OptionalTopic] = ()
) -> list[TopicSpec]:
    """How the topics of a run, and the topic of manifests, should exist.

    Raises ConfigError when `broker.max_record_bytes` is more than brokers accept in one request.
    """
    largest = broker.max_record_bytes
    if largest > largest_record_limit_bytes:
        raise ConfigError(
            f"broker.max_record_bytes = {largest} is more than {largest_record_limit_bytes}, near what a broker"
            " accepts in one request: shorten responses or lower it"
        )
    if broker.framing == "registry":
        largest += registry_margin_bytes
    kept = {"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1"}
    large = {**kept, "max.message.bytes": str(largest)}
    dead = {**kept, "max.message.bytes": str(largest + dead_letter_margin_bytes)}
    compacted = {
        "cleanup.policy": "compact",
        "segment.bytes": str(_compacted_segment_bytes),
        "segment.ms": str(_compacted_segment_ms),
    }

    def spec(name: str, num_partitions: int, config: Mapping[str, str]) -> TopicSpec:
        return TopicSpec(
            name=name,
            num_partitions=num_partitions,
            replication_factor=broker.replication_factor,
            config={
                **config,
                "message.timestamp.type": "LogAppendTime",
                "min.insync.replicas": str(broker.min_insync_replicas),
            },
        )

    turns = [spec(topics.turns, broker.samples_partitions, large)] if OptionalTopic.TURNS in optional else []
    return [
        spec(topics.tasks, broker.max_workers, large),
        spec(topics.samples, broker.samples_partitions, large),
        *([spec(topics.rewards, 1, kept)] if OptionalTopic.REWARDS in optional else []),
        spec(topics.evaluations, broker.samples_partitions, large),
        spec(topics.steps, 1, large),
        spec(topics.weights, 1, kept),
        spec(topics.control, 1, kept),
        spec(topics.workers, 1, compacted),
        spec(topics.dead_letters, 1, dead),
        *turns,
        spec(runs_topic(topics.prefix), 1, compacted),
    ]


def ensure_topics(admin: Admin, specs: Sequence[TopicSpec]) -> list[str]:
    """Create what is missing, check the rest; returns the names created.

    Raises TopicMismatch, naming every difference, when an existing topic is not as the run needs it.
    """
    created = admin.create_topics(specs)
    check_topics(admin, specs)
    return created


def check_topics(admin: Admin, specs: Sequence[TopicSpec]) -> None:
    """Raise TopicMismatch, naming every difference with its remedy, unless all topics are as they should be.

    Raises NotAuthorized where settings of a topic are not to be seen.
    """
    existing = admin.describe_topics([spec.name for spec in specs])
    if hidden := sorted(name for name, spec in existing.items() if not spec.config):
        # Every topic has settings. Compared with the defaults they would look wrong.
        raise NotAuthorized(
            f"the settings of {', '.join(hidden)} are not to be seen: grant DESCRIBE_CONFIGS on these topics"
        )
    differences = [line for spec in specs for line in topic_differences(spec, existing.get(spec.name))]
    if differences:
        raise TopicMismatch(
            "topics are not as this run needs them:\n" + "\n".join(f"  {d}" for d in differences)
        )


def topic_differences(wanted: TopicSpec, existing: TopicSpec | None) -> list[str]:
    """One line for each way in which a topic falls short, with the remedy."""
    if existing is None:
        return [f"topic {wanted.name} does not exist: create it with `rollog topics create`"]
    differences = []
    if existing.num_partitions != wanted.num_partitions:
        differences.append(
            f"topic {wanted.name} has {existing.num_partitions} partitions, not {wanted.num_partitions}:"
            " start a run of another name, or set the configuration to what exists"
        )
    if existing.replication_factor < wanted.replication_factor:
        differences.append(
            f"topic {wanted.name} has {existing.replication_factor} replicas, fewer than"
            f" {wanted.replication_factor}: reassign its partitions, or lower broker.replication_factor"
        )
    for name, value in wanted.config.items():
        found = existing.config.get(name, broker_defaults.get(name))
        if name in _not_checked or found is None or _satisfies(name, found, value):
            continue
        differences.append(
            f"topic {wanted.name} has {name} = {found}, not {value}: alter it with"
            f" `kafka-configs --alter --topic {wanted.name} --add-config {name}={value}`"
            f"{_or_smaller_records(name, int(found)) if name == _record_limit else ''}"
        )
    return differences


def not_created(wanted: TopicSpec, reason: str) -> str:
    """What is said where the cluster refuses a topic as it is wanted; `reason` is the cluster's own."""
    limit = wanted.config.get(_record_limit)
    records = "" if limit is None else f" and {_record_limit} = {limit}"
    smaller = (
        ""
        if limit is None
        else f"; where records may not be so large, set broker.max_record_bytes {dead_letter_margin_bytes} below the "
        "cluster's limit, and broker.inline_sample_bytes well below that, so that long samples become objects of the "
        "weights store"
    )
    return (
        f"the cluster refuses topic {wanted.name} with {wanted.num_partitions} partitions, "
        f"{wanted.replication_factor} replicas{records}: {reason}. Have its administrator create the topics that "
        f"`rollog topics print` shows{smaller}"
    )


def _or_smaller_records(name: str, found: int) -> str:
    largest = found - dead_letter_margin_bytes
    if largest < smallest_record_limit_bytes:
        return f"; no run goes with less than {smallest_record_limit_bytes + dead_letter_margin_bytes}"
    return (
        f"; where the cluster forbids that, start the run with broker.max_record_bytes = {largest} and "
        f"broker.inline_sample_bytes well below it: long samples become objects of the weights store ({name} of "
        f"dead-letters is {dead_letter_margin_bytes} more than that)"
    )


def _satisfies(name: str, found: str, wanted: str) -> bool:
    if name in _at_least:
        return int(found) >= int(wanted)
    return found == wanted
