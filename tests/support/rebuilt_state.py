"""What a dispatcher that starts now would know, by its snapshot or by the whole log, and all that it decides by."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from producers.dispatcher.rebuilding import Rebuilding
from producers.dispatcher.snapshot import folded_log
from rollog.kernel.broker.ports import TopicPartition
from rollog.kernel.broker.topics import RunTopics
from rollog.kernel.snapshot_file import SnapshotFile
from rollog.rules.epochs import newest_epoch
from schemas import DispatcherEpoch, TrainerEpoch
from trainer.control import ControlReader, KnownTasks
from trainer.recorded.history import History
from trainer.snapshot import TrainerSnapshot

if TYPE_CHECKING:
    from producers.dispatcher.settings import DispatcherSettings
    from producers.dispatcher.state import DispatcherState
    from rollog.kernel.broker.ports import Broker
    from trainer.settings import TrainerSettings


def rebuilt_state(broker: Broker, settings: DispatcherSettings, num_held_out: int = 0) -> DispatcherState:
    """The state as read now, beginning with the snapshot that `settings` name, if there is one."""
    file = SnapshotFile(settings.snapshot, "dispatcher")
    with broker.consumer(client_id="rebuilding") as consumer:
        rebuilding = Rebuilding(settings=settings, num_held_out=num_held_out, consumer=consumer)
        tasks = [
            TopicPartition(rebuilding.topics.tasks, number) for number in range(settings.broker.max_workers)
        ]
        folded = folded_log(settings, num_held_out, consumer, file)
        assert bool(folded.positions) == (settings.snapshot is not None and settings.snapshot.exists())
        newest = newest_epoch(broker, rebuilding.topics.control, DispatcherEpoch)
        rebuilding.check(folded, now=0.0)
        rebuilding.rebuild(
            folded,
            rebuilding.ends() | consumer.end_offsets(tasks),
            epoch=0 if newest is None else newest.epoch,
            now=0.0,
        )
    return folded.state


def facts_of_state(state: DispatcherState) -> dict[str, Any]:
    """Everything in it that a decision depends on, whatever the order it was learnt in."""
    groups = state.groups
    changed = groups.take_changed()
    issued = state.issued.to_plain()["tasks"]
    return {
        "ledger": state.ledger,
        "next_group": groups.next_group_id,
        "num_open": groups.num_open,
        "num_early_filtered": groups.num_early_filtered,
        "num_missing": groups.num_missing if state.ledger.has_genesis else None,
        "changed": changed,
        "wanted": {group: list(groups.wanted(group)) for group in changed},
        "last_attempts": {
            group: dict(progress["last_attempt"])
            for group, progress in groups.to_plain()["progress"]
            if group in changed
        },
        "surplus": {group: sorted(groups.surplus_tasks(group)) for group in changed},
        "open_tasks": {
            open_task.task_id: (open_task.task, open_task.worker_id, open_task.offset, open_task.remaining)
            for open_task in state.credits.all()
        },
        # Partitions and offsets of tasks do not matter here: what a fence voids has not been folded.
        "issued": sorted([task[0], *task[3:]] for task in issued),
        "evaluations": sorted(map(repr, state.evaluations.to_plain())),
        "grants": {
            worker.worker_id: worker.grant.grant_id
            for worker in state.workers.workers.values()
            if worker.grant is not None
        },
        "control": (state.control, state.last_group_id, state.is_stopped, state.is_run_closed),
    }


def facts_of_trainer(broker: Broker, settings: TrainerSettings, *, with_snapshot: bool) -> dict[str, Any]:
    """What a trainer that starts now would know of `steps`, `tasks` and `control`."""
    topics = RunTopics(settings.prefix, settings.run)
    history, known = TrainerSnapshot(settings).read(broker) if with_snapshot else (History(), KnownTasks())
    assert bool(known.positions) == (with_snapshot and settings.snapshot.exists())
    history.read_on(broker, topics)
    with ControlReader(
        broker,
        topics,
        TrainerEpoch(epoch=1 << 40, trainer_id="nobody"),
        num_task_partitions=settings.broker.max_workers,
        is_issued=lambda _task: True,
        closed_groups=history.state.closed_groups,
        known=known,
    ) as control:
        control.catch_up()
        read = control.known
    return {
        "history": history,
        "tasks": sorted(read.issued.to_plain()["tasks"]),
        "fences": sorted(read.issued.to_plain()["fences"]),
        "positions": read.positions,
        "newest_group": read.newest_group,
        "last_group": control.last_group_id,
    }
