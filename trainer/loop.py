"""The training loop.

Consumes samples and control; what it took over is `trainer.startup`'s. Produces ledger records, weights and their
notices, dead letters, checkpoints. Who waits for what, and what unblocks it:

    dispatcher  waits for room in the queue            <- groups that the ledger closes (`steps`)
                and for verdicts on attempts           <- stale, failed and lost ones it issues again (`steps`)
    worker      waits for a grant and for tasks        <- dispatcher (`control`, `tasks`)
                and for weights as new as a task asks  <- the trainer's transaction (`weights`)
    trainer     waits for B complete fresh groups      <- workers (`samples`)
                or, late, for rewards of samples       <- whoever scores (`rewards`), or `reward.deadline_seconds`
                or for a protected group               <- its samples, or after `freshness.patience_seconds` nothing
                and, once training is over, `Stopped`  <- dispatcher (`control`), or `run.close_timeout_seconds`

So while the trainer has no batch it publishes verdicts: without them the dispatcher issues nothing, no sample arrives,
and there is never a batch.

A step that is trained is written and committed beside the next one (`trainer.in_flight`). The loop judges by the ledger
ahead, which has that step already. Verdicts records wait until it is committed, and so does the step after it once it
is trained.

On a crash at any point the next trainer fences this one, folds the ledger, restores the engine from the newest
checkpoint or version 0, redoes the committed steps after it, and reads samples again from the low-water marks. What
was trained but not committed never happened; files of its weights are orphans.
"""

from __future__ import annotations

import math
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rollog.kernel.crash_points import CrashPoint, reach
from rollog.kernel.lifecycle import Component
from rollog.kernel.logs import get_logger
from rollog.settings.run import LastBatch
from schemas import Step, StepTimings
from trainer.in_flight import LandedStep, SealedStep
from trainer.intake import Intake, poll_seconds
from trainer.ledger.records import TrainedStep, close_record, step_record, verdicts_record
from trainer.progress import check_progress
from trainer.step.batch import check_finite, plan_groups, training_batch
from trainer.step.planning import step_seed
from trainer.waiting import TrainerFacts, cause_of, in_flight, training

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import ExitStack
    from threading import Event

    from rollog.rules.ledger_state import LedgerState
    from rollog.rules.role_voice import RoleVoice
    from rollog.rules.standing_still import Cause
    from schemas import DeadLetter, LedgerRecord, MicroBatch, Sample, WeightVersion
    from trainer.buffer.ready_groups import ReadyGroup
    from trainer.checkpoints import EngineCheckpoints
    from trainer.engines.ports import TrainingEngine
    from trainer.failed_batches import FailedBatches
    from trainer.in_flight import InFlight
    from trainer.ledger.writer import LedgerWriter
    from trainer.log_readers import OpenReaders
    from trainer.publishing import PublishedWeights, SealedWeights, WeightsPublisher
    from trainer.recorded.history import History
    from trainer.reporting import Reporter
    from trainer.settings import TrainerSettings
    from trainer.snapshot import TrainerSnapshot
    from trainer.step.ports import StepResult
    from trainer.weights_keeping import WeightsKeeper

log = get_logger("trainer")

gather_seconds = 0.01
"""Pause between two looks at the log: taking in many small batches costs more than their samples."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerParts:
    """What a trainer works with, all of one run that was taken over.

    `settings` are those in force, `history` is read to its end, `engine` stands at its version. `resources` holds what
    is closed with the trainer.
    """

    settings: TrainerSettings
    history: History
    snapshot: TrainerSnapshot
    writer: LedgerWriter
    engine: TrainingEngine
    publisher: WeightsPublisher
    in_flight: InFlight
    keeper: WeightsKeeper
    checkpoints: EngineCheckpoints
    reading: OpenReaders
    failed: FailedBatches
    reporter: Reporter
    voice: RoleVoice
    clock: Callable[[], float]
    resources: ExitStack


@dataclass(slots=True)
class _Clocks:
    """When things happened last, in seconds of the trainer's clock, and how long the last commit took."""

    idle_since: float
    tick: float
    verdicts: float = -math.inf
    commit_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class _Closing:
    """Training is over: why, since when, and up to where samples are still to be read."""

    reason: str
    since: float
    end_offsets: tuple[int, ...] | None = None


class Trainer(Component):
    """One trainer of one run, whole from the start: `trainer.startup.start_trainer` makes it. Enter it, then `run`.

    | state | a turn | until |
    | --- | --- | --- |
    | training | takes samples in; then one step, one verdicts record or nothing | `num_steps`, or the dataset's end |
    | stopping | takes samples in, publishes verdicts | `Stopped` was read, or the time-out is over |
    | draining | takes samples in | every partition is read to the end it had then |
    | closed | none: the close record is committed | - |

    Example with `num_steps` = 2 and B = 2, genesis committed as version 0. Turn 1 finds 3 complete groups, trains
    groups 0 and 1, publishes the weights of version 1 and commits one transaction: the step record, the notice of
    version 1, the offsets. Turn 2 finds group 2 alone: it publishes a verdict on a failed sample, so that its replica
    is issued again. Turn 3 finds group 3 complete and makes version 2 of groups 2 and 3: training is over. Turn 4 reads
    `Stopped` and notes that the partitions end at 5 and 4. Turn 5 has read so far: what is left in the buffer becomes
    incomplete, and the close record is committed.
    """

    def __init__(self, parts: TrainerParts) -> None:
        self._settings = parts.settings
        self._history = parts.history
        self._snapshot = parts.snapshot
        self._ledger = parts.history.state
        self._writer = parts.writer
        self._engine = parts.engine
        self._publisher = parts.publisher
        self._in_flight = parts.in_flight
        self._keeper = parts.keeper
        self._checkpoints = parts.checkpoints
        self._buffer = parts.reading.buffer
        self._stream = parts.reading.stream
        self._rewards = parts.reading.rewards
        self._control = parts.reading.control
        self._failed = parts.failed
        self._reporter = parts.reporter
        self.voice = parts.voice
        self._clock = parts.clock
        self._resources = parts.resources
        self._intake = Intake(
            parts.reading, parts.history, parts.reporter, clock=parts.clock, land=self._land
        )
        self._clocks = _Clocks(idle_since=parts.clock(), tick=parts.clock())
        self._closing: _Closing | None = None
        self._made_progress = False

    def close(self) -> None:
        """Let the step in flight land, stop reading, close the producer and the engine. Idempotent."""
        self._resources.close()

    @property
    def ledger(self) -> LedgerState:
        """The ledger ahead: as far as it is committed, and the step in flight, whose weights have no digest yet."""
        return self._ledger

    @property
    def committed_version(self) -> int:
        """The newest version that is committed, as far as this trainer has taken note of it."""
        return self._history.committed_version

    def run(self, stop: Event) -> None:
        """Train until the ledger is closed or `stop` is set, then commit what is in flight, and checkpoint."""
        with self._failed.until_stopped(stop):
            while not self._ledger.is_closed and not stop.is_set():
                self.run_once()
                stop.wait(gather_seconds)
        self._land()
        if not self._ledger.is_closed:
            self._save_checkpoint()
        self._checkpoints.take_note(wait=True)
        self._snapshot.write(self._history, self._control, self._clock())

    def run_once(self) -> None:
        """Take in what arrived; then one step, or one verdicts record, or nothing."""
        self._land(wait=False)
        self._checkpoints.take_note()
        self._control.poll()
        # Wait for samples only when there was nothing to do: whoever has work must not sleep for more.
        self._made_progress = self._intake.take_in_samples(0.0 if self._made_progress else poll_seconds)
        self._intake.take_in_rewards()
        self._turn()
        self._write_snapshot_if_due()
        if self._in_flight.is_empty:
            self._keeper.look(is_idle=not self._made_progress)
        if self._ledger.is_closed:
            self.voice.ends(self._clock())
        else:
            self.voice.look(self.committed_version, self._clock(), self._cause)

    def _write_snapshot_if_due(self) -> None:
        # It holds what is committed, and nothing else.
        if self._in_flight.is_empty:
            self._snapshot.write_if_due(self._history, self._control, self._clock())

    def _turn(self) -> None:
        if self._closing is not None:
            self._close_when_stopped(self._closing)
            return
        batch = None if self._is_trained else self._next_batch()
        if batch is not None and self._buffer.frees_replicas and self._in_flight.is_empty:
            # What is to be made again is made while the step computes. Its group may hold this step up from here on.
            self._commit_verdicts()
            batch = self._next_batch()
        if batch is not None:
            # Other pending verdicts go into the step's record: they cost no transaction of their own.
            self._train(batch)
        else:
            self._count_waiting()
            self._publish_verdicts()
        reason = self._reason_to_close(batch)
        if reason is not None:
            log.info("training over", version=self._ledger.version, reason=reason)
            self._closing = _Closing(reason, self._clock())
        else:
            check_progress(self._ledger, self._settings.groups, self._stream.newest_failure)

    def _next_batch(self) -> tuple[ReadyGroup, ...] | None:
        return self._buffer.next_batch(
            self._clock(),
            self._control.last_group_id,
            train_short=self._settings.run_config.last_batch is LastBatch.TRAIN,
        )

    @property
    def _is_trained(self) -> bool:
        return self._ledger.version >= self._settings.run_config.num_steps

    def _reason_to_close(self, batch: tuple[ReadyGroup, ...] | None) -> str | None:
        if self._is_trained:
            return "num_steps"
        last_group_id = self._control.last_group_id
        # Only without a batch: after one there may be enough for another.
        if batch is None and last_group_id is not None and self._buffer.has_every_group(last_group_id):
            return "dataset_end"
        return None

    def _train(self, batch: tuple[ReadyGroup, ...]) -> None:
        """One training step: train, seal, and let it be written and committed while the next one is trained."""
        version = self._ledger.version + 1
        if version <= self._failed.careful_until:
            self._land()
        if self._has_failed_before(batch, version):
            return
        began = self._clock()
        self.voice.busy(training(version))
        groups = [self._stream.samples(group.members) for group in batch]
        seed = step_seed(self._settings.seed, version)
        self._failed.begin(version, batch)
        plan, result = self._train_groups(groups, seed)
        trained = self._clock()
        sealed, written = self._published(version, batch)
        step = TrainedStep(
            batch=batch,
            samples=tuple(sample for group in groups for sample in group),
            plan=plan,
            seed=seed,
            result=result,
            weights_sha256="" if written is None else written.notice.sha256,
            timings=StepTimings(
                wait_seconds=began - self._clocks.idle_since,
                train_seconds=trained - began,
                # As long as training was held up: what is written beside it is not known yet.
                publish_seconds=self._clock() - trained,
                # A record cannot hold how long its own commit takes, so it holds the one before it.
                commit_seconds=self._clocks.commit_seconds,
                checkpoint_seconds=self._checkpoints.seconds_since_step,
            ),
            checkpoint=self._checkpoints.newest_name,
        )
        self._intake.catch_up()
        judgement = self._buffer.verdicts_for(batch)
        marks = self._buffer.low_water_marks(self._stream.positions, judgement[0])
        record = step_record(self._ledger, step, judgement, marks, self._settings.freshness)
        self._finish_step(record, sealed, written)
        self._clocks.idle_since = self._clocks.tick = self._clock()

    def _published(
        self, version: int, batch: tuple[ReadyGroup, ...]
    ) -> tuple[SealedWeights, PublishedWeights | None]:
        """Seal the weights, when the step before is committed; write them where nothing is to be done beside."""
        is_ahead = not self._in_flight.is_empty
        if is_ahead:
            # While it waits no sample is to blame for what becomes of this trainer.
            self._failed.succeeded()
        reach(CrashPoint.STEP_TRAINED)
        self._in_flight.make_way()
        if is_ahead:
            self.voice.busy(in_flight(version - 1, self._in_flight.seconds))
            self._land()
            self._failed.begin(version, batch)
        sealed = self._publisher.seal(version, self._engine)
        # Not before: with a NaN training has failed on these samples. With a full disk, or a store that is away, it
        # has not, nor whatever else becomes of the step from here on.
        self._failed.succeeded()
        if self._settings.trainer.publish_beside_training:
            return sealed, None
        written = self._publisher.write(sealed)
        reach(CrashPoint.WEIGHTS_WRITTEN)
        return sealed, written

    def _finish_step(
        self, record: LedgerRecord, sealed: SealedWeights, written: PublishedWeights | None
    ) -> None:
        """Commit the step, or let it land beside the next one; then checkpoint, if it is time."""
        config = self._settings.trainer
        is_checkpointed = record.version % config.checkpoint_every_steps == 0
        if written is not None:
            self._commit(record, written.notices)
            self._checkpoints.seconds_since_step = 0.0
            if is_checkpointed:
                self._save_checkpoint()
            return
        record, dead_letters = self._with_rewards(record)
        self._history.seal(record)
        self._folded(record)
        reach(CrashPoint.STEP_SEALED)
        committed = self._in_flight.send(
            SealedStep(record=record, weights=sealed, dead_letters=tuple(dead_letters))
        )
        self._checkpoints.seconds_since_step = 0.0
        if is_checkpointed:
            # The files now, before the engine goes on.
            self._checkpoints.begin(record.version, committed, keep=config.keep_checkpoints)

    def _land(self, *, wait: bool = True) -> None:
        """Take note of the step in flight, if there is one and it is committed. Raises what stopped it."""
        # Training stands still meanwhile: for a checkpoint, which takes processors and disk, nobody does.
        with self._engine.way.awaited() if wait else nullcontext():
            landed = self._in_flight.landed(wait=wait)
        if landed is not None:
            self._history.land(landed.entry)
            self._committed(landed)
            self._write_snapshot_if_due()
            # Where training is ahead all the time, there is no other moment with nothing in flight.
            self._keeper.look(is_idle=False)

    def _train_groups(
        self, groups: Sequence[Sequence[Sample]], seed: int
    ) -> tuple[tuple[MicroBatch, ...], StepResult]:
        settings, version = self._settings, self._ledger.version + 1
        plan = plan_groups(groups, settings.trainer, world_size=self._engine.describe().world_size, seed=seed)
        result = self._engine.train_step(
            training_batch(groups, plan, settings.algorithm, settings.sampling_temperature, version=version)
        )
        check_finite(result, version)
        return plan, result

    def _has_failed_before(self, batch: tuple[ReadyGroup, ...], version: int) -> bool:
        """Close what training fails on. Raises EngineError after groups were tried alone, or if none is at fault."""
        seed = step_seed(self._settings.seed, version)
        guilty = self._failed.untrainable(
            version, batch, self._buffer.ready, lambda group: self._train_alone(group, seed), self._engine
        )
        for group, said in guilty.items():
            log.warning("group is untrainable", group=group, error=said)
            self._buffer.close_untrainable(group)
        if guilty:
            # At once: the next batch may go well, and the note of who is guilty ends with it.
            self._commit_verdicts()
        return bool(guilty)

    def _train_alone(self, group: ReadyGroup, seed: int) -> None:
        self._train_groups([self._stream.samples(group.members)], seed)

    def _publish_verdicts(self) -> None:
        """Let the dispatcher know what became of samples, but not too often."""
        now = self._clock()
        interval = self._settings.trainer.verdicts_interval_seconds
        # One that stands before the step in flight would name staleness by a version that is not committed.
        if not self._in_flight.is_empty:
            return
        if self._buffer.has_pending and now - self._clocks.verdicts >= interval:
            self._commit_verdicts()

    def _commit_verdicts(self) -> None:
        judgement = self._buffer.verdicts_for()
        marks = self._buffer.low_water_marks(self._stream.positions, judgement[0])
        self._commit(verdicts_record(self._ledger, judgement, marks))
        self._clocks.verdicts = self._clock()

    def _close_when_stopped(self, closing: _Closing) -> None:
        """Wait for `Stopped`, read samples to their end, dispose of all, close."""
        waited = self._clock() - closing.since
        if closing.end_offsets is None:
            self._publish_verdicts()
            if not self._control.is_stopped:
                if waited <= self._settings.run_config.close_timeout_seconds:
                    return
                # Who was suspended meanwhile may have `Stopped` still to read.
                self._control.catch_up()
            if not self._control.is_stopped:
                log.warning("closing without the dispatcher's Stopped", waited_seconds=waited)
            self._land()
            # The ends are asked for after `Stopped`: workers write nothing behind it, so they hold every sample.
            self._closing = _Closing(closing.reason, closing.since, self._stream.end_offsets())
            return
        positions = self._stream.positions
        if any(position < end for position, end in zip(positions, closing.end_offsets, strict=True)):
            return
        self._buffer.close_all()
        with self._keeper.last_sweep():
            self._commit(close_record(self._ledger, self._buffer.verdicts_for(), positions, closing.reason))
        log.info("run closed", version=self._ledger.version, head=self._ledger.head.hex())

    def _commit(self, record: LedgerRecord, weights: tuple[WeightVersion, ...] = ()) -> None:
        """Commit one record, fold it into ledger and buffer, release what it disposed of."""
        record, dead_letters = self._with_rewards(record)
        started = self._clock()
        # Where this raises, nothing here has changed, and nobody knows whether it is committed: the caller ends.
        entry = self._writer.commit(record, weights=weights, dead_letters=dead_letters)
        seconds = self._clock() - started
        self._history.add(entry)
        self._folded(record)
        letters = tuple(dead_letters)
        self._committed(
            LandedStep(entry=entry, dead_letters=letters, notices=weights, commit_seconds=seconds)
        )

    def _with_rewards(self, record: LedgerRecord) -> tuple[LedgerRecord, list[DeadLetter]]:
        """The record with the place up to which rewards are read, and the dead letters that go with it."""
        dead_letters = self._stream.dead_letters(_places(record))
        if self._rewards is None:
            return record, dead_letters
        return self._rewards.marked(record), [*dead_letters, *self._rewards.dead_letters]

    def _folded(self, record: LedgerRecord) -> None:
        """The ledger has this record: judge what is left by it, and release what it disposed of."""
        self._reporter.closed(record)
        self._reporter.judged(self._buffer.committed(record))
        self._stream.release(_places(record))
        if self._rewards is not None:
            self._rewards.release()
        self._control.forget(group.group_id for group in record.closed_groups)
        self._made_progress = True

    def _committed(self, landed: LandedStep) -> None:
        self._clocks.commit_seconds = landed.commit_seconds
        self._reporter.committed(landed.commit_seconds, landed.dead_letters)
        self._keeper.committed(*landed.notices)
        record = landed.entry.record
        if isinstance(record.body, Step):
            self._reporter.stepped(record, record.body, landed.commit_seconds, landed.write_seconds)
        self._made_progress = True

    def _count_waiting(self) -> None:
        now = self._clock()
        # Enough groups are ready and there is no batch: only a protected group can be in the way.
        is_held = self._buffer.num_ready >= self._settings.groups.groups_per_batch
        self._reporter.waited(now - self._clocks.tick, is_held=is_held)
        self._clocks.tick = now

    def _cause(self) -> Cause:
        """What the next step waits for."""
        closing, now = self._closing, self._clock()
        return cause_of(
            TrainerFacts(
                num_ready=self._buffer.num_ready,
                groups_per_batch=self._settings.groups.groups_per_batch,
                group_size=self._settings.groups.group_size,
                lacking=tuple(self._buffer.lacking(self._control.ordered_groups)),
                holding=self._buffer.holding,
                num_unplaced=self._stream.num_unplaced,
                waiting=self._buffer.waits.replicas,
                longest_wait_seconds=self._buffer.waits.longest_seconds(now),
                seconds_since_reward=None
                if self._rewards is None or self._rewards.last_given_seconds is None
                else now - self._rewards.last_given_seconds,
                num_without_object=self._stream.payloads.num_waiting,
                store_silence=self._stream.payloads.silence,
                num_pending=self._buffer.num_pending,
                in_flight=None if self._in_flight.is_empty else self._ledger.version,
                in_flight_seconds=self._in_flight.seconds,
                closing_reason=None if closing is None else closing.reason,
                is_stopped=self._control.is_stopped,
                close_seconds_left=0.0
                if closing is None
                else closing.since + self._settings.run_config.close_timeout_seconds - now,
            )
        )

    def _save_checkpoint(self) -> None:
        self._checkpoints.save(self._ledger, keep=self._settings.trainer.keep_checkpoints)


def _places(record: LedgerRecord) -> list[tuple[int, int]]:
    return [(verdict.partition, verdict.offset) for verdict in record.verdicts]
