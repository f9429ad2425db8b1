"""A dispatcher's snapshot: its state with the places in the log up to which it was folded.

A start with one reads, besides the small topics, what was written since; from `samples` also what the ledger had not
judged. It is void unless it was made from the very log that is there, under the settings that are in force. Losing it
costs time only.

Written by who is in office alone: everything it tells of was acknowledged before `control` was read to an end fetched
afterwards. An overtaken dispatcher, whose newest tasks are void, would have read its successor's epoch there.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from producers.dispatcher.credits import OpenTask
from producers.dispatcher.state import DispatcherState
from rollog.kernel.broker.ports import TopicPartition
from rollog.kernel.broker.topics import RunTopics
from rollog.rules.issued_tasks import IssuedTasks
from rollog.rules.ledger_snapshot import ledger_from_plain, ledger_to_plain
from rollog.rules.snapshot_fit import (
    digest_of_settings,
    positions_from_plain,
    positions_to_plain,
    record_from_plain,
    record_to_plain,
    require_fit,
    require_settings,
)
from schemas import RolloutTask

if TYPE_CHECKING:
    from collections.abc import Mapping

    from producers.dispatcher.settings import DispatcherSettings
    from rollog.kernel.broker.ports import Consumer
    from rollog.kernel.snapshot_file import SnapshotFile


@dataclass(slots=True, kw_only=True)
class FoldedLog:
    """A state and the positions up to which the log is folded into it: none at the beginning of the log.

    `last_task` is (epoch, sequence) of the last task that was issued before them. `dead_lettered` are places of
    records that are set aside.
    """

    state: DispatcherState
    positions: dict[TopicPartition, int] = field(default_factory=dict)
    last_task: tuple[int, int] = (0, 0)
    dead_lettered: set[tuple[str, int, int]] = field(default_factory=set)

    def to_plain(self, settings: DispatcherSettings, num_held_out: int) -> dict[str, Any]:
        """As JSON has it."""
        state = self.state
        return {
            "settings": digest_of_settings(_facts(settings, num_held_out)),
            "positions": positions_to_plain(self.positions),
            "last_task": self.last_task,
            "dead_lettered": sorted(self.dead_lettered),
            "ledger": ledger_to_plain(state.ledger),
            "issued": state.issued.to_plain(),
            "groups": state.groups.to_plain(),
            "evaluations": state.evaluations.to_plain(),
            "open_tasks": [_open_task_to_plain(open_task) for open_task in state.credits.all()],
        }


def followed_partitions(settings: DispatcherSettings) -> list[TopicPartition]:
    """Every partition of which a snapshot holds a position: all but those of `control` and `workers`."""
    topics = RunTopics(settings.prefix, settings.run)
    counts = {
        topics.steps: 1,
        topics.dead_letters: 1,
        topics.tasks: settings.broker.max_workers,
        topics.samples: settings.broker.samples_partitions,
        topics.evaluations: settings.broker.samples_partitions,
    }
    return [TopicPartition(name, partition) for name, count in counts.items() for partition in range(count)]


def folded_log(
    settings: DispatcherSettings, num_held_out: int, consumer: Consumer, file: SnapshotFile
) -> FoldedLog:
    """Where to begin: at the snapshot in `file` where it is usable, else at the beginning of the log.

    Raises as a consumer does.
    """
    steps = RunTopics(settings.prefix, settings.run).steps

    def fitting(plain: Mapping[str, Any]) -> FoldedLog:
        read = _from_plain(plain, settings, num_held_out)
        require_fit(consumer, steps, read.state.ledger.head, read.positions)
        return read

    return file.read_as(fitting) or FoldedLog(state=DispatcherState(settings, num_held_out))


def _from_plain(plain: Mapping[str, Any], settings: DispatcherSettings, num_held_out: int) -> FoldedLog:
    require_settings(plain, _facts(settings, num_held_out))
    positions = positions_from_plain(plain["positions"])
    if positions.keys() != set(followed_partitions(settings)):
        raise ValueError("it was made of other topics")
    state = DispatcherState(settings, num_held_out, ledger_from_plain(plain["ledger"]))
    state.issued = IssuedTasks.from_plain(plain["issued"])
    for open_task in map(_open_task_from_plain, plain["open_tasks"]):
        state.credits.issue(open_task)
    state.groups.restore(plain["groups"], state.credits.all())
    state.evaluations.restore(plain["evaluations"])
    epoch, sequence = plain["last_task"]
    return FoldedLog(
        state=state,
        positions=positions,
        last_task=(int(epoch), int(sequence)),
        dead_lettered={
            (str(topic), int(number), int(offset)) for topic, number, offset in plain["dead_lettered"]
        },
    )


def _facts(settings: DispatcherSettings, num_held_out: int) -> list[object]:
    """All that decides what the state becomes by the same log."""
    sections = (settings.groups, settings.freshness, settings.sampling, settings.evaluation)
    return [
        settings.prefix,
        settings.run,
        settings.run_config.seed,
        settings.broker.samples_partitions,
        settings.broker.max_workers,
        num_held_out,
        *(section.model_dump(mode="json") for section in sections),
    ]


def _open_task_to_plain(open_task: OpenTask) -> list[Any]:
    value = record_to_plain(open_task.task)
    return [value, open_task.worker_id, open_task.known_offset(), sorted(open_task.remaining)]


def _open_task_from_plain(plain: list[Any]) -> OpenTask:
    value, worker_id, offset, remaining = plain
    return OpenTask(
        task=record_from_plain(RolloutTask, value),
        worker_id=str(worker_id),
        offset=None if offset is None else int(offset),
        remaining={int(replica) for replica in remaining},
    )
