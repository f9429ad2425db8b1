"""How a trainer takes a run over: from a fenced ledger to an engine at its newest version and samples being read.

Consumes `steps`, `weights`, checkpoints and, for the steps that are redone, `samples`. Produces genesis, an amend or a
rebase record where one is due, each in its own transaction. On a crash at any point the next trainer begins again: what
was committed is in the ledger, what was not never happened.

The order is fixed: fence, read the ledger, begin or check the run, amend, restore, read samples. Nothing is read before
earlier trainers are fenced, because they could still commit. Settings change before the engine is restored, so that
`trainer.allow_rebase` can be given with `rollog resume`.
"""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from producers.dispatcher.tasks import is_issued_by_a_dispatcher
from rollog.kernel.broker.topics import RunTopics
from rollog.kernel.errors import LedgerError
from rollog.kernel.logs import get_logger
from rollog.kernel.weights import WeightsStore
from rollog.rules.alpha_control import alpha_of_step
from rollog.rules.headers import SampleLimits, vocabulary_size
from rollog.settings.changes import new_changes
from trainer.buffer.sample_buffer import SampleBuffer
from trainer.buffer.sample_stream import SampleStream
from trainer.checkpoints import CheckpointStore, EngineCheckpoints
from trainer.control import ControlReader
from trainer.failed_batches import FailedBatches
from trainer.ledger.records import amend_record, genesis_record, rebase_record
from trainer.ledger.writer import LedgerWriter
from trainer.loop import Trainer, TrainerParts
from trainer.recorded.distances import weights_distance
from trainer.recorded.environment import compare_environment
from trainer.recorded.history import read_history, read_notices
from trainer.recorded.recovery import restore_engine
from trainer.recorded.redo import Recording
from trainer.reporting import Reporter
from trainer.settings import amended, settings_at
from trainer.step.schedule import rate_change

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from rollog.kernel.broker.ports import Broker
    from rollog.kernel.metrics import Metrics
    from rollog.rules.ledger_state import LedgerState
    from schemas import LedgerRecord, WeightVersion
    from trainer.engines.ports import TrainingEngine
    from trainer.recorded.history import History
    from trainer.recorded.redo import RedoneStep
    from trainer.settings import TrainerSettings

log = get_logger("trainer")


def start_trainer(
    settings: TrainerSettings,
    broker: Broker,
    metrics: Metrics,
    engine: TrainingEngine,
    *,
    amendment: Mapping[str, object] | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Trainer:
    """A trainer that has taken the run over; entering it closes everything at its end, the engine too.

    `settings` are those of the manifest; `amendment` changes some, by dotted key, before the next step. A closed run is
    left as it is. Where this raises, what was opened is closed again.

    Raises LedgerError, EngineError, WeightsError or TopicMismatch where the run cannot go on, ConfigError for an
    amendment that is not possible, BrokerTimeout where an outcome is unknown.
    """
    topics = RunTopics(settings.prefix, settings.run)
    reporter = Reporter(metrics, settings.groups)
    with ExitStack() as opened:
        opened.callback(engine.close)
        writer = opened.enter_context(
            LedgerWriter(
                broker,
                topics,
                transaction_timeout_seconds=settings.trainer.transaction_timeout_seconds,
                max_record_bytes=settings.broker.max_record_bytes,
            )
        )
        take_over = TakeOver(
            manifested=settings,
            broker=broker,
            topics=topics,
            engine=engine,
            writer=writer,
            store=WeightsStore(settings.weights_uri),
            checkpoints=EngineCheckpoints(CheckpointStore(settings.checkpoints), engine, reporter, clock),
            history=read_history(broker, topics),
        )
        in_force = take_over.complete(amendment or {})
        ledger = take_over.ledger
        control = opened.enter_context(_control_reader(in_force, broker, topics, ledger))
        limits = _sample_limits(in_force, engine, ledger)
        stream = opened.enter_context(
            _sample_stream(in_force, broker, ledger, limits=limits, origins=control)
        )
        # A closed run reads no samples any more, so they may be gone.
        if not ledger.is_closed:
            stream.check_retained(ledger.low_water_marks)
        reporter.ready(ledger.version, ledger.alpha)
        parts = TrainerParts(
            settings=in_force,
            ledger=ledger,
            writer=writer,
            engine=engine,
            store=take_over.store,
            checkpoints=take_over.checkpoints,
            buffer=SampleBuffer(ledger, in_force.groups, in_force.freshness),
            stream=stream,
            control=control,
            failed=FailedBatches.read(settings.failed_batches),
            reporter=reporter,
            clock=clock,
            resources=opened.pop_all(),
        )
    return Trainer(parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class TakeOver:
    """A run whose earlier trainers are fenced, its ledger as read then; `manifested` are the manifest's settings."""

    manifested: TrainerSettings
    broker: Broker
    topics: RunTopics
    engine: TrainingEngine
    writer: LedgerWriter
    store: WeightsStore
    checkpoints: EngineCheckpoints
    history: History

    @property
    def ledger(self) -> LedgerState:
        """The ledger as far as it is committed."""
        return self.history.state

    def complete(self, amendment: Mapping[str, object]) -> TrainerSettings:
        """Bring ledger and engine to where the next step begins; returns the settings in force there.

        Leaves a closed run alone.
        """
        if self.ledger.is_closed:
            return self.manifested
        is_new = not self.ledger.has_genesis
        if is_new:
            self._begin()
        self._check_partitions()
        in_force = self._amend(settings_at(self.manifested, self.ledger, self.ledger.revision), amendment)
        if not is_new:
            self._restore(in_force)
        self.engine.change_settings(in_force.step_settings)
        log.info(
            "trainer ready",
            run=self.manifested.run,
            version=self.ledger.version,
            alpha=self.ledger.alpha,
            sequence=self.ledger.next_sequence,
        )
        return in_force

    def _begin(self) -> None:
        """Publish version 0 and commit genesis."""
        settings = self.manifested
        self.engine.start(settings.model_path)
        notice = self.store.publish(0, self.engine.export_weights())
        with self.broker.admin() as admin:
            versions = {"kafka": admin.broker_version()}
        record = genesis_record(
            self.engine.describe(),
            manifest_json=settings.manifest_json,
            alpha=alpha_of_step(1, (), settings.freshness),
            weights_sha256=notice.sha256,
            num_partitions=settings.broker.samples_partitions,
            versions=versions,
        )
        self._commit(record, notice)

    def _check_partitions(self) -> None:
        # group_id mod the number of partitions says where a group's samples are, so the number is the run's.
        expected, recorded = self.manifested.broker.samples_partitions, len(self.ledger.low_water_marks)
        if expected != recorded:
            raise LedgerError(
                f"the ledger of run {self.manifested.run} counts {recorded} samples partitions, "
                f"broker.samples_partitions is {expected}; a run keeps the number it began with: set it to {recorded}"
            )

    def _amend(self, settings: TrainerSettings, amendment: Mapping[str, object]) -> TrainerSettings:
        """Commit the settings that change from here on, if any do: a trainer started again finds them in force."""
        changes = new_changes(settings.amendable, amendment, version=self.ledger.version)
        if not changes:
            return settings
        after = amended(settings, changes)
        self._commit(amend_record(self.ledger, changes, after.freshness))
        log.info(
            "settings changed",
            revision=self.ledger.revision,
            version=self.ledger.version,
            **{key.replace(".", "_"): value for key, value in changes.items()},
        )
        self._tell_new_rate(settings, after)
        return after

    def _tell_new_rate(self, before: TrainerSettings, after: TrainerSettings) -> None:
        """Say where the learning rate jumps: its schedule ends with the run, so another length is another schedule."""
        taken = sum(len(self.history.step(version).learning_rates) for version in self.history.steps)
        change = rate_change(taken, before.step_settings, after.step_settings)
        if change is not None:
            log.warning(
                "learning rate of the next step changes; optimizer.learning_rate and final_fraction can keep it",
                optimizer_steps_taken=taken,
                rate_before=change[0],
                rate_after=change[1],
            )

    def _restore(self, in_force: TrainerSettings) -> None:
        """Bring the engine to the last committed version."""
        recording = Recording(
            broker=self.broker,
            topics=self.topics,
            store=self.store,
            downloads=self.manifested.downloads,
            settings=self.manifested,
            history=self.history,
        )
        restored = restore_engine(
            self.engine,
            recording,
            self.checkpoints.complete(),
            allow_rebase=in_force.trainer.allow_rebase,
        )
        if restored.checkpoint is not None:
            self.checkpoints.newest_version = restored.checkpoint.version
        if restored.other_weights is not None:
            self._rebase(recording, restored.other_weights, in_force)

    def _rebase(self, recording: Recording, step: RedoneStep, in_force: TrainerSettings) -> None:
        """Go on from the weights that redo gave: publish them under a new version, say how far they are, checkpoint."""
        ledger = self.ledger
        published = read_notices(self.broker, self.topics, ledger)[ledger.version]
        distance = weights_distance(step.weights, self.store.fetch(published, recording.downloads))
        reason = compare_environment(recording.genesis, self.engine.describe()).named_differences
        notice = self.store.publish(ledger.version + 1, step.weights)
        record = rebase_record(
            ledger,
            notice.sha256,
            distance.max_absolute,
            reason or "no difference of machine type and versions is known",
            in_force.freshness,
        )
        self._commit(record, notice)
        log.warning("rebased", version=ledger.version, max_difference=distance.max_absolute, reason=reason)
        # A redo gives these weights nowhere else, so the next trainer must find them in a checkpoint.
        self.checkpoints.save(ledger, keep=in_force.trainer.keep_checkpoints)

    def _commit(self, record: LedgerRecord, weights: WeightVersion | None = None) -> None:
        self.ledger.apply(record, self.writer.commit(record, weights=weights))


def _control_reader(
    settings: TrainerSettings, broker: Broker, topics: RunTopics, ledger: LedgerState
) -> ControlReader:
    return ControlReader(
        broker,
        topics,
        num_task_partitions=settings.broker.max_workers,
        is_issued=partial(
            is_issued_by_a_dispatcher,
            run_seed=settings.run_config.seed,
            num_replicas=settings.groups.num_replicas,
        ),
        closed_groups=ledger.closed_groups.keys(),
        other_writers=settings.groups.other_writers,
    )


def _sample_limits(settings: TrainerSettings, engine: TrainingEngine, ledger: LedgerState) -> SampleLimits:
    # The engine of a closed run is not started, and nothing is read there.
    num_vocabulary = None if ledger.is_closed else vocabulary_size(engine.describe().model_config_json)
    return SampleLimits(
        num_partitions=settings.broker.samples_partitions,
        num_replicas=settings.groups.num_replicas,
        temperature=settings.sampling_temperature,
        num_vocabulary=num_vocabulary,
        max_context_tokens=settings.model.max_context_tokens,
    )


def _sample_stream(
    settings: TrainerSettings,
    broker: Broker,
    ledger: LedgerState,
    *,
    limits: SampleLimits,
    origins: ControlReader,
) -> SampleStream:
    """Samples from the low-water marks on."""
    topics = RunTopics(settings.prefix, settings.run)
    return SampleStream(
        broker,
        topics.samples,
        ledger.low_water_marks,
        group_id=topics.trainer_group,
        limits=limits,
        origins=origins,
        max_dead_letters_in_a_row=settings.broker.max_dead_letters_in_a_row,
        max_record_bytes=settings.broker.max_record_bytes,
    )
