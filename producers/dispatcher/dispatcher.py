"""The dispatcher: the one role that decides which rollout is made, by whom, and when it is taken back.

consumes   control, steps, samples, evaluations, workers (and tasks, dead-letters, its snapshot once, at its start)
produces   tasks, control, `lost` records on samples and evaluations, dead-letters
waits for  free slots at a worker that serves the version a task needs; room for another group
on crash   the next dispatcher takes a higher epoch, voids what was under way, and reads its state from the log

One thread, one loop; every decision is made by the pure parts it holds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from producers.dispatcher.waiting import DispatcherWaits
from rollog.kernel.lifecycle import Component
from rollog.kernel.logs import get_logger
from rollog.rules.role_voice import RoleVoice
from schemas import DatasetEnd, RunClosed, RunRole, Stopped

if TYPE_CHECKING:
    from collections.abc import Callable
    from threading import Event

    from producers.dispatcher.issuing import Issuer
    from producers.dispatcher.leases import LeaseKeeper
    from producers.dispatcher.reader import LogReader
    from producers.dispatcher.sender import TaskSender
    from producers.dispatcher.settings import DispatcherSettings
    from producers.dispatcher.snapshot_writer import SnapshotWriter
    from producers.dispatcher.state import DispatcherState
    from rollog.kernel.broker.ports import Consumer, Producer
    from rollog.kernel.metrics import Metrics

log = get_logger("dispatcher")

poll_seconds = 0.02
shortest_pause_seconds = 0.03
longest_pause_seconds = 0.15
pause_seconds_per_worker = 0.0008
backlog_seconds = 1.0
"""Pause between two counts of what waits for slots: it looks at every group that lacks something."""


def pause_seconds(num_workers: int) -> float:
    """How long records gather between two looks, with so many workers under a lease.

    Taking in many small batches costs more than their records: with 256 workers that end a task a second each, 30
    looks in a second cost more than the tasks. Prefetched tasks hide the longer pause.

    Example: 32 workers are looked at every 0.03 s, 64 every 0.05 s, 188 and more every 0.15 s.
    """
    return min(longest_pause_seconds, max(shortest_pause_seconds, num_workers * pause_seconds_per_worker))


@dataclass(frozen=True, slots=True, kw_only=True)
class DispatcherParts:
    """What a take-over hands to the dispatcher: the state read from the log, and what acts on it under one epoch."""

    epoch: int
    dispatcher_id: str
    state: DispatcherState
    producer: Producer
    consumer: Consumer
    reader: LogReader
    sender: TaskSender
    leases: LeaseKeeper
    issuer: Issuer
    snapshots: SnapshotWriter


class Dispatcher(Component):
    """Owns a run's tasks under one epoch. `producers.dispatcher.startup.TakeOver` makes one.

    | state       | reached by                            | each turn                                               |
    | ---         | ---                                   | ---                                                     |
    | dispatching | a take-over                           | grants, evaluations, attempts that lack, new groups     |
    | stopping    | last step taken, evaluations answered | open tasks end, or are declared lost at a deadline      |
    | stopped     | no open task; Stopped is written      | the ledger's close record is waited for                 |
    | closed      | its close record; RunClosed is sent   | none: `run` returns                                     |

    Example: `num_steps` is 3. At version 3 every open training task is cancelled and the final evaluation is issued.
    Its last sample leads to Stop for every worker. With the last open task ended, Stopped is written; the trainer reads
    it and closes the ledger; the turn that reads the close writes RunClosed.
    """

    def __init__(
        self,
        settings: DispatcherSettings,
        metrics: Metrics,
        parts: DispatcherParts,
        *,
        clock: Callable[[], float],
    ) -> None:
        self._settings = settings
        self._metrics = metrics
        self._clock = clock
        self._producer = parts.producer
        self._consumer = parts.consumer
        self._reader = parts.reader
        self._sender = parts.sender
        self._leases = parts.leases
        self._issuer = parts.issuer
        self._snapshots = parts.snapshots
        self._stop_sent_at: float | None = None
        self._waiting_counted_at: float | None = None
        self.state = parts.state
        self.epoch = parts.epoch
        self.voice = RoleVoice(
            RunRole.DISPATCHER,
            parts.dispatcher_id,
            epoch=parts.epoch,
            version=parts.state.ledger.version,
            clock=clock,
            gauge=metrics.dispatcher_standing_still_seconds,
        )
        self._waits = DispatcherWaits(parts.state, max_workers=settings.broker.max_workers, begun_at=clock())

    def run(self, stop: Event) -> None:
        """Dispatch until the run is closed or `stop` is set. Raises Superseded."""
        while not stop.is_set():
            # Also where the log says already that the run is closed: anybody may have written that before it was.
            self.run_once()
            if self.state.is_run_closed:
                break
            stop.wait(pause_seconds(len(self.state.slots.granted)))
        self._sender.flush()
        self._snapshots.write_last(self._clock())
        log.info("dispatcher leaves", epoch=self.epoch, closed=self.state.is_run_closed)

    def close(self) -> None:
        """Close consumer and producer. Idempotent."""
        try:
            self._consumer.close()
        finally:
            self._producer.close()

    def run_once(self) -> None:
        """Take in what arrived, then do whatever it makes possible."""
        records = self._consumer.poll(poll_seconds)
        now = self._clock()
        if records:
            self._leases.contact(now)
        for record in records:
            self._reader.take_in(record, now)
        self.state.check_epoch(self.epoch)
        # Before anything is sent in this turn: what a snapshot tells of is acknowledged.
        self._snapshots.write_if_due(now)
        self._leases.keep_contact(now)
        self._leases.end_leases(now)
        self._leases.reconcile(now)
        self._issuer.cancel_surplus()
        if self.state.ledger.is_closed:
            closed = RunClosed(epoch=self.epoch)
            self._sender.control(closed)
            self.state.on_control(closed, now)
        elif self._stop_sent_at is not None or (self.state.is_stopped and self._is_trained()):
            self._stop_workers(now)
        else:
            self._leases.give_grants()
            self._issue()
        self._report()

    def _issue(self) -> None:
        ledger = self.state.ledger
        if not ledger.has_genesis:
            return
        if self._issuer.at_dataset_end and self.state.last_group_id is None:
            self._end_dataset()
        if not self._is_trained():
            if self._issuer.issue_evaluations():
                self._issuer.issue_training(self._clock())
            return
        self.state.cancel_training_tasks()
        if self._issuer.issue_evaluations(is_final=True) and self.state.evaluations.is_complete(
            ledger.version
        ):
            self._stop_workers(self._clock())

    def _is_trained(self) -> bool:
        """Whether the trainer takes no further step: the last one is committed, or no group can follow."""
        ledger = self.state.ledger
        if ledger.version >= ledger.num_steps(self._settings.run_config.num_steps):
            return True
        # Whoever says that the dataset ended, it has ended when no group is left to be issued.
        is_ended = self._issuer.at_dataset_end and self.state.last_group_id is not None
        return is_ended and self.state.groups.all_closed()

    def _end_dataset(self) -> None:
        end = DatasetEnd(epoch=self.epoch, last_group_id=self.state.groups.next_group_id - 1)
        self._sender.control(end)
        self.state.on_control(end, self._clock())
        log.info("dataset ended", last_group=end.last_group_id)

    def _stop_workers(self, now: float) -> None:
        """Send Stop once, wait for open tasks (for a bounded time), then say Stopped."""
        if self._stop_sent_at is None:
            self._stop_sent_at = now
            for worker in self.state.workers.workers.values():
                if worker.grant is not None:
                    self._sender.stop(worker.grant)
            log.info("workers told to stop", open_tasks=len(self.state.credits))
        if self.state.is_stopped:
            return
        if now - self._stop_sent_at > self._settings.dispatch.stop_timeout_seconds:
            # A worker that hangs must not keep the run from its close.
            self._leases.lose_all()
        if len(self.state.credits) == 0:
            # Stopped promises that every sample is in the log; the `lost` ones are this process's own.
            self._sender.flush()
            stopped = Stopped(epoch=self.epoch)
            self._sender.control(stopped)
            self.state.on_control(stopped, now)
            log.info("stopped", version=self.state.ledger.version)

    def _report(self) -> None:
        slots = self.state.slots
        slots.refresh()
        self._metrics.dispatcher_open_groups.set(self.state.groups.num_open)
        self._metrics.dispatcher_credits_free.set(slots.free.num_slots)
        self._metrics.dispatcher_workers.set(len(slots.granted))
        self._report_backlog()
        self._speak()

    def _report_backlog(self) -> None:
        """Workers are scaled by it: it must fall to 0 as soon as nothing more will be ordered."""
        is_over = self._stop_sent_at is not None or self.state.is_stopped or self.state.ledger.is_closed
        if is_over or not self.state.ledger.has_genesis:
            self._metrics.dispatcher_rollouts_open.set(self.state.credits.num_rollouts)
            self._metrics.dispatcher_rollouts_waiting.set(0)
            return
        now = self._clock()
        if self._waiting_counted_at is not None and now - self._waiting_counted_at < backlog_seconds:
            return
        self._waiting_counted_at = now
        self._metrics.dispatcher_rollouts_open.set(self.state.credits.num_rollouts)
        waiting = self._issuer.num_waiting(is_trained=self._is_trained())
        self._metrics.dispatcher_rollouts_waiting.set(waiting)

    def _speak(self) -> None:
        """Say what is waited for when no step comes."""
        now = self._clock()
        if self.state.ledger.is_closed:
            self.voice.ends(now)
            return
        self._waits.observe(now)
        silence = self._leases.seconds_without_contact(now)
        self.voice.look(self.state.ledger.version, now, lambda: self._waits.cause(now, silence))
