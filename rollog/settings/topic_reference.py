"""The reference of topics: names, settings and the records on each, as the code declares them.

    python -m rollog.settings.topic_reference > docs/reference/topics.md

writes the page anew; a test compares it with the code.
"""

from __future__ import annotations

from inspect import getdoc
from typing import TYPE_CHECKING

import click

from rollog.kernel.broker.topics import OptionalTopic, RunTopics, runs_topic, topic_specs
from rollog.settings.run import BrokerConfig
from schemas import (
    Cancel,
    DatasetEnd,
    DeadLetter,
    DispatcherEpoch,
    Fence,
    Grant,
    LedgerRecord,
    Revoke,
    Reward,
    RoleStatus,
    RolloutTask,
    RunClosed,
    RunManifest,
    Sample,
    Stop,
    Stopped,
    TrainerEpoch,
    Turn,
    WeightVersion,
    WorkerStatus,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rollog.kernel.broker.ports import TopicSpec
    from schemas.records import Record

_introduction = """\
# Topics

This page is written by `python -m rollog.settings.topic_reference > docs/reference/topics.md` from
`rollog/kernel/broker/topics.py`; change that, not the page. Who writes and reads what, and when, is in
[protocol](../protocol.md#topics); the fields of the records are in [schemas](schemas.md).

A run owns eight topics, `<prefix>.<run>.<name>`, with `dispatch.durable_turns` also `turns`, and with `reward.late`
`rewards`; all runs under a prefix share `<prefix>.runs`. Partitions are always chosen by the writer. `rollog topics
print --run NAME` prints the same with the values of your own settings, without asking a broker; `rollog topics create`
creates them and `rollog topics check` compares.
"""

_names_introduction = """\
## Groups and transactional ids

Names that a cluster has to allow beside the topics. Nothing goes on from committed offsets: they are there for tools.
Which role needs which right is in [least privilege](../least-privilege.md).

| name | kind | meaning |
| --- | --- | --- |
"""

_settings_introduction = """\
## Kafka settings

With the default `[broker]` section. `rollog topics check` compares all but `segment.bytes` and `segment.ms`; a larger
`max.message.bytes` or `min.insync.replicas` than asked for is accepted.

| topic | settings |
| --- | --- |
"""

records_by_topic: Mapping[str, tuple[type[Record], ...]] = {
    "tasks": (RolloutTask, Cancel, Stop, Fence),
    "samples": (Sample,),
    "rewards": (Reward,),
    "evaluations": (Sample,),
    "steps": (LedgerRecord,),
    "weights": (WeightVersion,),
    "control": (DispatcherEpoch, TrainerEpoch, Grant, Revoke, DatasetEnd, Stopped, RunClosed),
    "workers": (WorkerStatus, RoleStatus),
    "dead-letters": (DeadLetter,),
    "turns": (Turn,),
    "runs": (RunManifest,),
}
"""The records that may stand on each topic, by the last part of its name."""

_partitions: Mapping[str, str] = {
    "tasks": "`broker.max_workers`",
    "samples": "`broker.samples_partitions`",
    "evaluations": "`broker.samples_partitions`",
    "turns": "`broker.samples_partitions`",
}
_topics = RunTopics("<prefix>", "<run>")


def topic_reference() -> str:
    """The page as Markdown."""
    specs = topic_specs(_topics, BrokerConfig(), tuple(OptionalTopic))
    lines = ["| topic | holds | records | partitions |", "| --- | --- | --- | --- |"]
    lines += [_row(spec) for spec in specs]
    settings = [f"| `{spec.name}` | {_settings(spec)} |" for spec in specs]
    names = "".join(f"| `{name}` | {kind} | {meaning} |\n" for name, kind, meaning in _other_names())
    table, configured = ("\n".join(rows) + "\n" for rows in (lines, settings))
    return "\n".join([_introduction, table, _settings_introduction + configured, _names_introduction + names])


def _row(spec: TopicSpec) -> str:
    name = spec.name.rsplit(".", 1)[-1]
    holds = _meaning(runs_topic) if spec.name == runs_topic("<prefix>") else _meaning_of_property(name)
    records = ", ".join(
        f"[{each.__name__}](schemas.md#{each.__name__.lower()})" for each in records_by_topic[name]
    )
    return f"| `{spec.name}` | {holds} | {records} | {_partitions.get(name, spec.num_partitions)} |"


def _settings(spec: TopicSpec) -> str:
    return ", ".join(f"`{name}={value}`" for name, value in sorted(spec.config.items()))


def _other_names() -> list[tuple[str, str, str]]:
    kinds = {"group": "consumer group", "id": "transactional id"}
    return [
        (getattr(_topics, name), kinds[ending], _meaning_of_property(name))
        for name in vars(RunTopics)
        if (ending := name.rsplit("_", 1)[-1]) in kinds
    ]


def _meaning_of_property(name: str) -> str:
    return _meaning(getattr(RunTopics, name.replace("-", "_")))


def _meaning(documented: object) -> str:
    return " ".join((getdoc(documented) or "").split())


if __name__ == "__main__":
    click.echo(topic_reference(), nl=False)
