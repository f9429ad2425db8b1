"""How a trainer takes a run over: from a fenced ledger to an engine at its newest version and samples being read.

Consumes `steps`, `weights`, checkpoints and, for the steps that are redone, `samples`. Produces a `TrainerEpoch` on
`control`, then genesis, an amend or a rebase record where one is due, each in its own transaction. On a crash at any
point the next trainer begins again: what was committed is in the ledger, what was not never happened.

1. As a reader alone: read the ledger, check settings, amendment and partitions, bring the engine to the newest version.
   All that a trainer can be refused for shows here, while the one that works goes on.
2. Fence earlier trainers and commit the next epoch. From now on nobody else can commit.
3. Read the ledger on, redo what was committed since 1, begin the run or amend it, read samples.

A snapshot of an earlier trainer, if there is one, saves reading what is older than it (`trainer.snapshot`).
What is asked for counts already in 1, so that `trainer.allow_rebase` can be given with `rollog resume`.
"""

from __future__ import annotations

import math
import time
from contextlib import ExitStack
from dataclasses import dataclass
from threading import Event
from typing import TYPE_CHECKING

from consumers.named_weights import read_named_weights
from rollog.kernel.broker.topics import RunTopics
from rollog.kernel.errors import Expired, LedgerError
from rollog.kernel.logs import get_logger
from rollog.kernel.store_owner import store_rights
from rollog.kernel.versions.lane import Lane
from rollog.kernel.weights import WeightsStore
from rollog.rules.alpha_control import alpha_of_step
from rollog.rules.role_voice import RoleVoice
from rollog.settings.changes import new_changes
from schemas import RunRole
from trainer.buffer.reward_intake import check_rewards_retained
from trainer.buffer.sample_stream import check_retained
from trainer.checkpoints import CheckpointStore, EngineCheckpoints
from trainer.failed_batches import FailedBatches
from trainer.in_flight import Background, InFlight
from trainer.ledger.records import amend_record, genesis_record, rebase_record
from trainer.ledger.writer import LedgerWriter
from trainer.log_readers import LogReaders
from trainer.loop import Trainer, TrainerParts
from trainer.published_again import PublishAgain, is_whole
from trainer.publishing import WeightsPublisher, weights_sha256
from trainer.recorded.distances import weights_distance
from trainer.recorded.environment import compare_environment
from trainer.recorded.recovery import redo_recorded, restore_engine
from trainer.recorded.redo import Recording
from trainer.reporting import Reporter
from trainer.settings import amended, settings_at
from trainer.snapshot import TrainerSnapshot
from trainer.step.schedule import rate_change
from trainer.weights_keeping import Keeping, WeightsKeeper

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from rollog.kernel.broker.ports import Broker
    from rollog.kernel.metrics import Metrics
    from rollog.rules.ledger_state import LedgerState
    from rollog.settings.changes import Changes
    from schemas import LedgerRecord, TrainerEpoch, WeightVersion
    from trainer.engines.ports import TrainingEngine
    from trainer.recorded.history import History
    from trainer.recorded.recovery import Restored
    from trainer.recorded.redo import RedoneStep
    from trainer.settings import TrainerSettings

log = get_logger("trainer")

_moved_on = "another trainer {what} while this one was starting: start it again, it begins from there"


def start_trainer(
    settings: TrainerSettings,
    broker: Broker,
    metrics: Metrics,
    engine: TrainingEngine,
    *,
    stop: Event | None = None,
    amendment: Mapping[str, object] | None = None,
    clock: Callable[[], float] = time.monotonic,
    enters: Callable[[str], None] = log.info,
    background: Background | None = None,
) -> Trainer:
    """A trainer that has taken the run over; entering it closes everything at its end, the engine too.

    `settings` are those of the manifest; `amendment` changes some, by dotted key, before the next step. A closed run is
    left as it is. Once `stop` is set, no silent store is waited for. `enters` is told each phase of the start.
    `background` runs what is done beside training, on threads without one. Where this raises, what was opened is closed
    again.

    Raises LedgerError, EngineError, WeightsError, TopicMismatch or ConfigError, while an earlier trainer works on;
    BrokerTimeout, Superseded or Expired where an outcome is unknown or another one takes over meanwhile.
    """
    reporter = Reporter(metrics, settings.groups)
    snapshot = TrainerSnapshot(settings)
    background, stop = background or Background.threads(), stop or Event()
    with ExitStack() as opened:
        opened.callback(engine.close)
        opened.callback(background.close)
        enters("reading the ledger")
        history, known = snapshot.read(broker)
        lane = None if settings.shared is None else Lane(settings.shared)
        store = WeightsStore(
            settings.weights_uri,
            wait_seconds=settings.weights_wait_seconds,
            no_longer=stop,
            lane=lane,
        )
        take_over = TakeOver(
            history=history,
            manifested=settings,
            amendment=amendment or {},
            broker=broker,
            topics=RunTopics(settings.prefix, settings.run),
            engine=engine,
            store=store,
            publisher=WeightsPublisher(
                store,
                lambda: history.weights_identity,
                patches=settings.has_patches,
                first=lambda: read_named_weights(
                    broker, RunTopics(settings.prefix, settings.run), history.state.weights
                ).get(0),
            ),
            checkpoints=EngineCheckpoints(
                CheckpointStore(settings.checkpoints), engine, reporter, clock, background.checkpoints
            ),
            enters=enters,
        )
        opened.callback(take_over.checkpoints.close)
        prepared = take_over.prepare()
        writer = opened.enter_context(_ledger_writer(settings, broker, take_over.topics))
        if lane is not None:
            lane.clear()
            opened.callback(lane.clear)
        ledger, in_force = take_over.complete(prepared, writer)
        readers = LogReaders(settings=in_force, broker=broker, topics=take_over.topics, ledger=ledger)
        reading = readers.open(
            opened, epoch=writer.epoch, known=known, engine=engine, store=take_over.store, clock=clock
        )
        _tell_ready(reporter, settings.run, ledger, writer.epoch)
        parts = TrainerParts(
            settings=in_force,
            history=history,
            snapshot=snapshot,
            writer=writer,
            engine=engine,
            publisher=take_over.publisher,
            in_flight=opened.enter_context(
                InFlight(take_over.publisher, writer, background, clock=clock, stop=stop)
            ),
            keeper=take_over.keeper(ledger, in_force, writer, clock),
            checkpoints=take_over.checkpoints,
            reading=reading,
            failed=FailedBatches.read(settings.failed_batches),
            reporter=reporter,
            voice=_voice(writer.epoch, ledger, metrics, clock),
            clock=clock,
            resources=opened.pop_all(),
        )
    return Trainer(parts)


def _ledger_writer(settings: TrainerSettings, broker: Broker, topics: RunTopics) -> LedgerWriter:
    return LedgerWriter(
        broker,
        topics,
        transaction_timeout_seconds=settings.trainer.transaction_timeout_seconds,
        max_record_bytes=settings.broker.max_record_bytes,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """An engine at the newest version of a ledger that others may still write; `restored` is None without genesis.

    `version` and `rebases` are those of the ledger then.
    """

    version: int
    rebases: frozenset[int]
    restored: Restored | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TakeOver:
    """How one trainer takes a run over: `prepare` reads and refuses, `complete` writes.

    `manifested` are the manifest's settings, `amendment` those to change. `history` is the ledger as far as it was
    read, and is read on.
    """

    history: History
    manifested: TrainerSettings
    amendment: Mapping[str, object]
    broker: Broker
    topics: RunTopics
    engine: TrainingEngine
    store: WeightsStore
    publisher: WeightsPublisher
    checkpoints: EngineCheckpoints
    enters: Callable[[str], None] = log.info

    def prepare(self) -> Prepared:
        """Do as a reader alone all that can fail: a trainer that is at work goes on if this one is refused."""
        # Before the ledger: a trainer that is at work saves a checkpoint of what it has committed, and only of that.
        checkpoints = self.checkpoints.complete()
        self.history.read_on(self.broker, self.topics)
        ledger = self.history.state
        if ledger.is_closed:
            return self._prepared(None)
        in_force, _ = self._amended(ledger)
        if not ledger.has_genesis:
            self.enters("loading the model")
            self.engine.start(self.manifested.model_path)
            return self._prepared(None)
        self._check_partitions(ledger)
        check_retained(self.broker, self.topics.samples, ledger.low_water_marks)
        if self.manifested.reward_deadline_seconds is not None:
            check_rewards_retained(self.broker, self.topics.rewards, ledger.reward_mark)
        self.enters(f"loading the model and restoring version {ledger.version}")
        restored = restore_engine(
            self.engine,
            self._recording,
            checkpoints,
            allow_rebase=in_force.trainer.allow_rebase,
        )
        if restored.checkpoint is not None:
            self.checkpoints.newest_version = restored.checkpoint.version
        return self._prepared(restored)

    def _prepared(self, restored: Restored | None) -> Prepared:
        history = self.history
        return Prepared(version=history.state.version, rebases=frozenset(history.rebases), restored=restored)

    def complete(self, prepared: Prepared, writer: LedgerWriter) -> tuple[LedgerState, TrainerSettings]:
        """Bring ledger and engine to where the next step begins, now that nobody else writes.

        Returns the ledger and the settings in force there. Leaves a closed run alone. Raises Expired where another
        trainer began the run from other weights, or gave it others, since `prepare`: the engine cannot follow that.
        """
        history = self.history
        history.read_on(self.broker, self.topics)
        ledger = history.state
        if ledger.is_closed:
            return ledger, self.manifested
        self.checkpoints.remove_remains()
        other_weights = None
        if ledger.has_genesis:
            other_weights = self._caught_up(prepared)
        else:
            self._begin(writer)
        in_force, changes = self._amended(ledger)
        if changes:
            _commit(history, writer, amend_record(ledger, changes, in_force.freshness))
            log.info(
                "settings changed",
                revision=ledger.revision,
                version=ledger.version,
                **{key.replace(".", "_"): value for key, value in changes.items()},
            )
            before = settings_at(self.manifested, ledger, ledger.revision - 1)
            self._tell_new_rate(before, in_force)
        if other_weights is not None:
            self._rebase(writer, in_force)
        self._publish_lost(ledger, writer)
        self.engine.change_settings(in_force.step_settings)
        return ledger, in_force

    def _amended(self, ledger: LedgerState) -> tuple[TrainerSettings, Changes]:
        """What is in force after this take-over, and what of it is new. Raises ConfigError."""
        settings = settings_at(self.manifested, ledger, ledger.revision)
        changes = new_changes(settings.amendable, self.amendment, version=ledger.version)
        return (amended(settings, changes) if changes else settings), changes

    def _caught_up(self, prepared: Prepared) -> RedoneStep | None:
        """Redo what another trainer committed since `prepare`; returns the newest step if it gave other weights."""
        history, restored = self.history, prepared.restored
        if restored is None:
            # Another one began it meanwhile, and can write no more: who ended here would leave the run to nobody.
            self._check_begun(history)
        if history.rebases != prepared.rebases:
            raise Expired(_moved_on.format(what="gave the run other weights"))
        if restored is not None and history.state.version == prepared.version:
            return restored.other_weights
        begin = 0 if restored is None else prepared.version
        in_force, _ = self._amended(history.state)
        return redo_recorded(
            self.engine,
            self._recording,
            range(begin + 1, history.state.version + 1),
            allow_rebase=in_force.trainer.allow_rebase,
        )

    def _check_begun(self, history: History) -> None:
        """The engine must stand at the version 0 of a genesis that is not its own. Raises Expired, LedgerError."""
        self._check_partitions(history.state)
        if weights_sha256(self.engine, history.weights_identity) != history.state.weights[0]:
            raise Expired(_moved_on.format(what="began the run from other weights"))

    @property
    def _recording(self) -> Recording:
        return Recording(
            broker=self.broker,
            topics=self.topics,
            store=self.store,
            downloads=self.manifested.downloads,
            settings=self.manifested,
            history=self.history,
        )

    def _begin(self, writer: LedgerWriter) -> None:
        """Publish version 0 and commit genesis."""
        settings = self.manifested
        notice = self.publisher.publish(0, self.engine)
        with self.broker.admin() as admin:
            versions = {"kafka": admin.broker_version()}
        record = genesis_record(
            self.engine.describe(),
            manifest_json=settings.manifest_json,
            alpha=alpha_of_step(1, (), settings.freshness),
            weights_sha256=notice.sha256,
            weights_identity=self.history.weights_identity,
            num_partitions=settings.broker.samples_partitions,
            versions=versions,
        )
        _commit(self.history, writer, record, notice)

    def _publish_lost(self, ledger: LedgerState, writer: LedgerWriter) -> None:
        """Put the newest version into the store again where that has lost it: no worker could begin without it."""
        version = ledger.version
        notice = read_named_weights(self.broker, self.topics, ledger.weights).get(version)
        if notice is None or not is_whole(self.store, notice):
            again = PublishAgain(store=self.store, publish=self._publish, announce=writer.announce)
            again(version, ledger.weights[version], notice)

    def _publish(self, version: int) -> WeightVersion:
        return self.publisher.publish(version, self.engine)

    def keeper(
        self,
        ledger: LedgerState,
        in_force: TrainerSettings,
        writer: LedgerWriter,
        clock: Callable[[], float],
    ) -> WeightsKeeper:
        """What keeps the weights store in order from here on."""
        is_by_content = self.history.weights_identity == "file"
        keeping = Keeping(
            store=self.store,
            rights=store_rights(
                self.broker, self.topics, self.store, in_force.home, is_by_content=is_by_content
            ),
            named=read_named_weights(self.broker, self.topics, ledger.weights),
            rule=in_force.keeping_rule,
            grace_seconds=in_force.trainer.weights_grace_seconds,
            announce=writer.announce,
            publish=self._publish,
            forget_base=self.publisher.forget_base,
            lag=lambda: math.ceil(ledger.alpha),
            checkpoints=lambda: [checkpoint.version for checkpoint in self.checkpoints.complete()],
            clock=clock,
        )
        return WeightsKeeper(keeping)

    def _check_partitions(self, ledger: LedgerState) -> None:
        # group_id mod the number of partitions says where a group's samples are, so the number is the run's.
        expected, recorded = self.manifested.broker.samples_partitions, len(ledger.low_water_marks)
        if expected != recorded:
            raise LedgerError(
                f"the ledger of run {self.manifested.run} counts {recorded} samples partitions, "
                f"broker.samples_partitions is {expected}; a run keeps the number it began with: set it to {recorded}"
            )

    def _tell_new_rate(self, before: TrainerSettings, after: TrainerSettings) -> None:
        """Say where the learning rate jumps: its schedule ends with the run, so another length is another schedule."""
        taken = self.history.num_optimizer_steps
        change = rate_change(taken, before.step_settings, after.step_settings)
        if change is not None:
            log.warning(
                "learning rate of the next step changes; optimizer.learning_rate and final_fraction can keep it",
                optimizer_steps_taken=taken,
                rate_before=change[0],
                rate_after=change[1],
            )

    def _rebase(self, writer: LedgerWriter, in_force: TrainerSettings) -> None:
        """Go on from the weights that redo gave: publish them under a new version, say how far they are, checkpoint."""
        ledger, recording = self.history.state, self._recording
        published = read_named_weights(self.broker, self.topics, ledger.weights).of(ledger.version)
        distance = weights_distance(
            self.engine.export_weights, self.store.fetch(published, recording.downloads)
        )
        reason = compare_environment(recording.genesis, self.engine.describe()).named_differences
        notice = self.publisher.publish(ledger.version + 1, self.engine)
        record = rebase_record(
            ledger,
            notice.sha256,
            distance.max_absolute,
            reason or "no difference of machine type and versions is known",
            in_force.freshness,
        )
        _commit(self.history, writer, record, notice)
        log.warning("rebased", version=ledger.version, max_difference=distance.max_absolute, reason=reason)
        # A redo gives these weights nowhere else, so the next trainer must find them in a checkpoint.
        self.checkpoints.save(ledger, keep=in_force.trainer.keep_checkpoints)


def _commit(history: History, writer: LedgerWriter, record: LedgerRecord, *weights: WeightVersion) -> None:
    history.add(writer.commit(record, weights=weights))


def _tell_ready(reporter: Reporter, run: str, ledger: LedgerState, epoch: TrainerEpoch) -> None:
    reporter.ready(ledger.version, ledger.alpha)
    log.info(
        "trainer ready",
        run=run,
        epoch=epoch.epoch,
        version=ledger.version,
        alpha=ledger.alpha,
        sequence=ledger.next_sequence,
    )


def _voice(
    epoch: TrainerEpoch, ledger: LedgerState, metrics: Metrics, clock: Callable[[], float]
) -> RoleVoice:
    return RoleVoice(
        RunRole.TRAINER,
        epoch.trainer_id,
        epoch=epoch.epoch,
        version=ledger.version,
        clock=clock,
        gauge=metrics.trainer_standing_still_seconds,
    )
