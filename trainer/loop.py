"""The training loop.

Consumes samples, control and, to begin with, its own ledger. Produces ledger records, weights and their notices, dead
letters, checkpoints. Waits for complete groups of fresh samples; while it waits, it publishes verdicts, because the
dispatcher issues new groups only as old ones close. At the end it waits for the dispatcher's `Stopped`, disposes of
everything and closes the ledger.

On a crash at any point the next trainer fences this one, folds the ledger, restores the engine from the newest
checkpoint or version 0, redoes the committed steps after it, and reads samples again from the low-water marks. What
was trained but not committed never happened; its weights file is an orphan.
"""

from __future__ import annotations

import math
import time
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from rollog.kernel.broker.topics import RunTopics
from rollog.kernel.crash_points import CrashPoint, reach
from rollog.kernel.errors import LedgerError
from rollog.kernel.logs import get_logger
from rollog.kernel.weights import WeightsStore
from rollog.rules.alpha_control import alpha_of_step
from rollog.rules.headers import SampleLimits
from rollog.settings.changes import new_changes
from rollog.settings.run import LastBatch
from schemas import Step, StepTimings
from trainer.buffer.sample_buffer import SampleWindow
from trainer.buffer.sample_stream import SampleStream
from trainer.checkpoints import CheckpointStore
from trainer.control import ControlReader
from trainer.ledger.records import (
    TrainedStep,
    amend_record,
    close_record,
    genesis_record,
    rebase_record,
    step_record,
    verdicts_record,
)
from trainer.ledger.writer import LedgerWriter
from trainer.progress import check_progress
from trainer.recorded.distances import weights_distance
from trainer.recorded.history import read_history, read_notices
from trainer.recorded.recovery import restore_engine
from trainer.recorded.redo import Recording, environment_differences
from trainer.reporting import Reporter
from trainer.settings import amended, settings_at
from trainer.step.batch import check_finite, plan_groups, training_batch
from trainer.step.planning import step_seed

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from threading import Event
    from types import TracebackType

    from rollog.kernel.broker.ports import Broker
    from rollog.kernel.metrics import Metrics
    from rollog.rules.headers import SampleHeader
    from rollog.rules.ledger_state import LedgerState
    from schemas import LedgerRecord, WeightVersion
    from trainer.buffer.sample_buffer import ReadyGroup
    from trainer.engines.ports import TrainingEngine
    from trainer.recorded.history import History
    from trainer.recorded.redo import RedoneStep
    from trainer.settings import TrainerSettings

log = get_logger("trainer")

poll_seconds = 0.05
gather_seconds = 0.01
"""Pause between two looks at the log: taking in many small batches costs more than their samples."""


@dataclass(slots=True)
class _Clocks:
    """When things happened last, in seconds of the trainer's clock, and how long the last step's end took."""

    idle_since: float
    tick: float
    verdicts: float
    commit_seconds: float = 0.0
    checkpoint_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class _Closing:
    """Training is over: why, since when, and up to where samples are still to be read."""

    reason: str
    since: float
    end_offsets: tuple[int, ...] | None = None


class Trainer:
    """One trainer of one run. Enter it to take the run over, then `run`."""

    def __init__(
        self,
        settings: TrainerSettings,
        broker: Broker,
        metrics: Metrics,
        engine: TrainingEngine,
        *,
        amendment: Mapping[str, object] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`settings` are those of the manifest; `amendment` changes some, by dotted key, before the next step."""
        self._settings = settings
        self._amendment = amendment or {}
        self._broker = broker
        self._reporter = Reporter(metrics, settings.groups)
        self._engine = engine
        self._clock = clock
        self._topics = RunTopics(settings.prefix, settings.run)
        self._store = WeightsStore(settings.weights_uri)
        self._checkpoints = CheckpointStore(settings.checkpoints)
        self._open_parts = ExitStack()
        self._headers: dict[tuple[int, int], SampleHeader] = {}
        self._clocks = _Clocks(idle_since=clock(), tick=clock(), verdicts=-math.inf)
        self._closing: _Closing | None = None
        self._checkpointed: int | None = None
        self._made_progress = False
        self._writer: LedgerWriter
        self._ledger: LedgerState
        self._window: SampleWindow
        self._stream: SampleStream
        self._control: ControlReader

    def __enter__(self) -> Self:
        """Fence earlier trainers, restore or begin the run, start reading."""
        with ExitStack() as open_parts:
            self._take_over(open_parts)
            self._open_parts = open_parts.pop_all()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._open_parts.close()

    @property
    def ledger(self) -> LedgerState:
        """The ledger as far as it is committed."""
        return self._ledger

    def run(self, stop: Event) -> None:
        """Train until the ledger is closed or `stop` is set, then checkpoint what is not yet."""
        while not self._ledger.is_closed and not stop.is_set():
            self.run_once()
            stop.wait(gather_seconds)
        if not self._ledger.is_closed:
            self._save_checkpoint()

    def run_once(self) -> None:
        """Take in what arrived; then one step, or one verdicts record, or nothing."""
        self._control.poll()
        self._take_in_samples()
        if self._closing is not None:
            self._close_when_stopped(self._closing)
            return
        batch = None if self._is_trained else self._next_batch()
        if batch is not None:
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

    def _take_over(self, open_parts: ExitStack) -> None:
        settings, topics = self._settings, self._topics
        open_parts.callback(self._engine.close)
        self._writer = open_parts.enter_context(
            LedgerWriter(
                self._broker,
                topics,
                transaction_timeout_seconds=settings.trainer.transaction_timeout_seconds,
                max_record_bytes=settings.broker.max_record_bytes,
            )
        )
        history = read_history(self._broker, topics)
        self._ledger = history.state
        if self._ledger.is_closed:
            return
        is_new = not self._ledger.has_genesis
        if is_new:
            self._begin()
        self._check_partitions()
        self._settings = settings_at(settings, self._ledger, self._ledger.revision)
        self._amend()
        if not is_new:
            self._restore(settings, history)
        self._engine.change_settings(self._settings.step_settings)
        self._start_reading(open_parts)
        log.info(
            "trainer ready",
            run=settings.run,
            version=self._ledger.version,
            alpha=self._ledger.alpha,
            sequence=self._ledger.next_sequence,
        )

    def _restore(self, manifested: TrainerSettings, history: History) -> None:
        """Bring the engine to the last committed version; `manifested` are the settings of the manifest."""
        recording = Recording(
            broker=self._broker,
            topics=self._topics,
            store=self._store,
            downloads=manifested.downloads,
            settings=manifested,
            history=history,
        )
        restored = restore_engine(
            self._engine,
            recording,
            self._checkpoints.complete(),
            allow_rebase=self._settings.trainer.allow_rebase,
        )
        self._checkpointed = None if restored.checkpoint is None else restored.checkpoint.version
        if restored.other_weights is not None:
            self._rebase(recording, restored.other_weights)

    def _rebase(self, recording: Recording, step: RedoneStep) -> None:
        """Go on from the weights that redo gave: publish them under a new version, say how far they are, checkpoint."""
        ledger = self._ledger
        published = read_notices(self._broker, self._topics, ledger)[ledger.version]
        distance = weights_distance(step.weights, self._store.fetch(published, recording.downloads))
        differences = environment_differences(recording.genesis, self._engine.describe())
        reason = "; ".join(f"{name} was {then}, is {now}" for name, (then, now) in differences.items())
        notice = self._store.publish(ledger.version + 1, step.weights)
        record = rebase_record(
            ledger,
            notice.sha256,
            distance.max_absolute,
            reason or "no difference of machine type and versions is known",
            self._settings.freshness,
        )
        ledger.apply(record, self._writer.commit(record, weights=notice))
        log.warning("rebased", version=ledger.version, max_difference=distance.max_absolute, reason=reason)
        self._save_checkpoint()

    def _amend(self) -> None:
        """Commit the settings that change from here on, if any do: a trainer started again finds them in force."""
        changes = new_changes(self._settings.amendable, self._amendment, version=self._ledger.version)
        if not changes:
            return
        after = amended(self._settings, changes)
        record = amend_record(self._ledger, changes, after.freshness)
        self._ledger.apply(record, self._writer.commit(record))
        self._settings = after
        log.info(
            "settings changed",
            revision=self._ledger.revision,
            version=self._ledger.version,
            **{key.replace(".", "_"): value for key, value in changes.items()},
        )

    def _start_reading(self, open_parts: ExitStack) -> None:
        """Judge samples from the low-water marks on, by the settings in force."""
        settings, topics = self._settings, self._topics
        self._window = SampleWindow(self._ledger, settings.groups, settings.freshness)
        self._stream = open_parts.enter_context(
            SampleStream(
                self._broker,
                topics.samples,
                self._ledger.low_water_marks,
                group_id=topics.trainer_group,
                limits=SampleLimits(
                    num_partitions=settings.broker.samples_partitions,
                    num_replicas=settings.groups.num_replicas,
                    temperature=settings.sampling_temperature,
                ),
                max_dead_letters_in_a_row=settings.broker.max_dead_letters_in_a_row,
            )
        )
        self._control = open_parts.enter_context(ControlReader(self._broker, topics.control))
        self._reporter.ready(self._ledger.version, self._ledger.alpha)
        self._clocks.idle_since = self._clocks.tick = self._clock()

    def _begin(self) -> None:
        """Publish version 0 and commit genesis."""
        self._engine.start(self._settings.model_path)
        notice = self._store.publish(0, self._engine.export_weights())
        with self._broker.admin() as admin:
            versions = {"kafka": admin.broker_version()}
        record = genesis_record(
            self._engine.describe(),
            manifest_json=self._settings.manifest_json,
            alpha=alpha_of_step(1, (), self._settings.freshness),
            weights_sha256=notice.sha256,
            num_partitions=self._settings.broker.samples_partitions,
            versions=versions,
        )
        self._ledger.apply(record, self._writer.commit(record, weights=notice))

    def _check_partitions(self) -> None:
        expected, found = self._settings.broker.samples_partitions, len(self._ledger.low_water_marks)
        if expected != found:
            raise LedgerError(
                f"the ledger of run {self._settings.run} counts {found} samples partitions, broker.samples_partitions "
                f"is {expected}; a run keeps the number it began with: set it to {found}"
            )

    def _take_in_samples(self) -> None:
        started = self._clock()
        arrived = self._stream.poll(0.0 if self._made_progress else poll_seconds)
        self._reporter.polled(self._clock() - started)
        self._made_progress = bool(arrived)
        for item in arrived:
            place = item.header.place
            if self._ledger.is_disposed(*place):
                self._stream.release([place])
            else:
                self._headers[place] = item.header
                self._window.add(item.header)

    def _next_batch(self) -> tuple[ReadyGroup, ...] | None:
        return self._window.next_batch(
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
        if batch is None and last_group_id is not None and self._window.is_exhausted(last_group_id):
            return "dataset_end"
        return None

    def _train(self, batch: tuple[ReadyGroup, ...]) -> None:
        """One training step: train, publish, commit, checkpoint."""
        settings, version = self._settings, self._ledger.version + 1
        began = self._clock()
        groups = [self._stream.samples(group.members) for group in batch]
        seed = step_seed(settings.seed, version)
        plan = plan_groups(groups, settings.trainer, world_size=self._engine.describe().world_size, seed=seed)
        result = self._engine.train_step(
            training_batch(groups, plan, settings.algorithm, settings.sampling_temperature, version=version)
        )
        check_finite(result, version)
        trained = self._clock()
        notice = self._store.publish(version, self._engine.export_weights())
        reach(CrashPoint.WEIGHTS_WRITTEN)
        step = TrainedStep(
            batch=batch,
            samples=tuple(sample for group in groups for sample in group),
            plan=plan,
            seed=seed,
            result=result,
            weights_sha256=notice.sha256,
            timings=StepTimings(
                wait_seconds=began - self._clocks.idle_since,
                train_seconds=trained - began,
                publish_seconds=self._clock() - trained,
                commit_seconds=self._clocks.commit_seconds,
                checkpoint_seconds=self._clocks.checkpoint_seconds,
            ),
            checkpoint=None if self._checkpointed is None else f"step-{self._checkpointed:06d}",
        )
        judgement = self._window.verdicts_for(batch)
        marks = self._window.low_water_marks(self._stream.positions, judgement[0])
        self._commit(step_record(self._ledger, step, judgement, marks, settings.freshness), notice)
        self._clocks.checkpoint_seconds = 0.0
        if version % settings.trainer.checkpoint_every_steps == 0:
            self._save_checkpoint()
        self._clocks.idle_since = self._clocks.tick = self._clock()

    def _publish_verdicts(self) -> None:
        """Tell the dispatcher what became of samples, but not too often."""
        now = self._clock()
        interval = self._settings.trainer.verdicts_interval_seconds
        if not self._window.has_pending or now - self._clocks.verdicts < interval:
            return
        judgement = self._window.verdicts_for()
        marks = self._window.low_water_marks(self._stream.positions, judgement[0])
        self._commit(verdicts_record(self._ledger, judgement, marks))
        self._clocks.verdicts = self._clock()

    def _close_when_stopped(self, closing: _Closing) -> None:
        """Wait for `Stopped`, read samples to their end, dispose of all, close."""
        waited = self._clock() - closing.since
        if closing.end_offsets is None:
            self._publish_verdicts()
            is_late = waited > self._settings.run_config.close_timeout_seconds
            if not self._control.is_stopped and not is_late:
                return
            if not self._control.is_stopped:
                log.warning("closing without the dispatcher's Stopped", waited_seconds=waited)
            self._closing = _Closing(closing.reason, closing.since, self._stream.end_offsets())
            return
        positions = self._stream.positions
        if any(position < end for position, end in zip(positions, closing.end_offsets, strict=True)):
            return
        self._window.close_all()
        self._commit(close_record(self._ledger, self._window.verdicts_for(), positions, closing.reason))
        log.info("run closed", version=self._ledger.version, head=self._ledger.head.hex())

    def _commit(self, record: LedgerRecord, weights: WeightVersion | None = None) -> None:
        """Commit one record, fold it into ledger and window, forget what it disposed of."""
        places = [(verdict.partition, verdict.offset) for verdict in record.verdicts]
        letters = self._stream.dead_letters(places)
        started = self._clock()
        digest = self._writer.commit(record, weights=weights, dead_letters=letters)
        self._clocks.commit_seconds = self._clock() - started
        self._ledger.apply(record, digest)
        self._window.settled(record)
        self._reporter.committed(self._clocks.commit_seconds, len(letters))
        self._reporter.closed(record)
        self._reporter.judged(
            (verdict, self._headers.pop((verdict.partition, verdict.offset))) for verdict in record.verdicts
        )
        if isinstance(record.body, Step):
            self._reporter.stepped(record, record.body, self._clocks.commit_seconds)
        self._stream.release(places)
        self._made_progress = True

    def _count_waiting(self) -> None:
        now = self._clock()
        is_held = self._window.num_ready >= self._settings.groups.groups_per_batch
        self._reporter.waited(now - self._clocks.tick, is_held=is_held)
        self._clocks.tick = now

    def _save_checkpoint(self) -> None:
        """Checkpoint the committed version, once."""
        version = self._ledger.version
        if version in {0, self._checkpointed}:
            return
        started = self._clock()
        checkpoint = self._checkpoints.save(
            version,
            self._ledger.weights[version],
            self._engine.save_checkpoint,
            keep=self._settings.trainer.keep_checkpoints,
        )
        self._checkpointed = version
        self._clocks.checkpoint_seconds = self._clock() - started
        self._reporter.checkpointed(checkpoint.name, self._clocks.checkpoint_seconds)
