"""The trainer's side of a fabricated run: genesis, steps, verdicts, and what stands on disk at its end.

The trainer's own builders of ledger records, its `LedgerWriter` and the simulated engine make them. Of the weights only
the files of version 0 and of the newest one are written, of the checkpoints only the newest: nobody who starts reads
another.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rollog.kernel.lifecycle import Component
from rollog.kernel.versions.notices import weights_name
from rollog.kernel.versions.single_file import SingleFileSink
from rollog.kernel.weights import WeightsStore
from rollog.rules.alpha_control import alpha_of_step
from rollog.rules.filtering import filter_reason
from rollog.rules.ledger_state import LedgerState
from schemas import ClosedGroup, Disposition, StepTimings, WeightVersion
from trainer.buffer.ready_groups import in_training_order, ready_group
from trainer.buffer.verdicts import verdict_of
from trainer.checkpoints import CheckpointStore
from trainer.engines.simulated import SimulatedTrainingEngine
from trainer.ledger.records import TrainedStep, genesis_record, step_record, verdicts_record
from trainer.ledger.writer import LedgerWriter
from trainer.step.batch import plan_groups
from trainer.step.planning import step_seed
from trainer.step.ports import TrainingBatch

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rollog.kernel.broker.ports import Broker
    from rollog.kernel.broker.topics import RunTopics
    from rollog.rules.headers import SampleHeader
    from schemas import LedgerRecord, Sample, Verdict
    from trainer.buffer.ready_groups import ReadyGroup
    from trainer.settings import TrainerSettings

    Members = Sequence[tuple[SampleHeader, Sample]]


class Decisions(Component):
    """A trainer that has taken the run over; `ledger` is folded to its end."""

    def __init__(self, broker: Broker, topics: RunTopics, settings: TrainerSettings) -> None:
        self._settings = settings
        self._store = WeightsStore(settings.weights_uri)
        self._engine = SimulatedTrainingEngine()
        self._engine.start(settings.model_path)
        self._writer = LedgerWriter(
            broker,
            topics,
            transaction_timeout_seconds=settings.trainer.transaction_timeout_seconds,
            max_record_bytes=settings.broker.max_record_bytes,
        )
        self.ledger = LedgerState()

    def close(self) -> None:
        """Close the producer and the engine."""
        self._writer.close()
        self._engine.close()

    def begin(self) -> None:
        """Publish version 0 and commit genesis."""
        notice = self._store.publish(0, self._engine.export_weights)
        record = genesis_record(
            self._engine.describe(),
            manifest_json=self._settings.manifest_json,
            alpha=alpha_of_step(1, (), self._settings.freshness),
            weights_sha256=notice.sha256,
            weights_identity="file",
            num_partitions=self._settings.broker.samples_partitions,
            versions={},
        )
        self._commit(record, notice)

    def fail(self, header: SampleHeader, low_water_marks: Sequence[int]) -> None:
        """Commit the verdict on a failed sample by itself, as a trainer does that has no batch yet."""
        verdict = verdict_of(header, Disposition.FAILED, version=self.ledger.version)
        self._commit(verdicts_record(self.ledger, ((verdict,), ()), tuple(low_water_marks)))

    def step(self, groups: Mapping[int, Members], low_water_marks: Sequence[int]) -> None:
        """Train what passes the filters of these complete groups, and dispose of the others."""
        version = self.ledger.version
        reasons = {
            group: filter_reason([header for header, _ in members], self._settings.groups)
            for group, members in groups.items()
        }
        ready = [
            ready_group(group, [header for header, _ in members], version)
            for group, members in groups.items()
            if reasons[group] is None
        ]
        batch = in_training_order(ready, self._settings.groups, lambda _: False)
        verdicts = [
            verdict_of(header, Disposition.TRAINED, version=version)
            for group in batch
            for header in group.members
        ]
        verdicts += self._filtered(groups, reasons)
        closed = tuple(
            ClosedGroup(
                group_id=group, outcome=Disposition.TRAINED if reason is None else Disposition.FILTERED
            )
            for group, reason in reasons.items()
        )
        samples = {header.place: sample for members in groups.values() for header, sample in members}
        trained, notice = self._trained(batch, samples)
        record = step_record(
            self.ledger,
            trained,
            (tuple(verdicts), closed),
            tuple(low_water_marks),
            self._settings.freshness,
        )
        self._commit(record, notice)

    def end(self) -> None:
        """Write the newest weights and a checkpoint of them, as a trainer that leaves in order does."""
        version = self.ledger.version
        if version > 0:
            self._store.publish(version, self._engine.export_weights)
            CheckpointStore(self._settings.checkpoints).save(
                version, self.ledger.weights[version], self._engine.save_checkpoint, keep=1
            )

    def _filtered(self, groups: Mapping[int, Members], reasons: Mapping[int, str | None]) -> list[Verdict]:
        return [
            verdict_of(header, Disposition.FILTERED, version=self.ledger.version, reason=reason)
            for group, reason in reasons.items()
            if reason is not None
            for header, _ in groups[group]
        ]

    def _trained(
        self, batch: Sequence[ReadyGroup], samples: Mapping[tuple[int, int], Sample]
    ) -> tuple[TrainedStep, WeightVersion]:
        """The step over these groups, whose weights are a digest of the plan alone."""
        members = [[samples[header.place] for header in group.members] for group in batch]
        seed = step_seed(self._settings.seed, self.ledger.version + 1)
        plan = plan_groups(members, self._settings.trainer, world_size=1, seed=seed)
        result = self._engine.train_step(TrainingBatch(samples=(), plan=plan))
        notice = self._notice()
        trained = TrainedStep(
            batch=tuple(batch),
            samples=tuple(sample for group in members for sample in group),
            plan=plan,
            seed=seed,
            result=result,
            weights_sha256=notice.sha256,
            timings=StepTimings(
                wait_seconds=1.0, train_seconds=1.0, publish_seconds=0.1, commit_seconds=0.02
            ),
            checkpoint=None,
        )
        return trained, notice

    def _notice(self) -> WeightVersion:
        """What the notice of the engine's weights says, without their file."""
        file = SingleFileSink()
        self._engine.export_weights(file)
        version = self.ledger.version + 1
        return WeightVersion(
            version=version,
            sha256=file.sha256,
            name=weights_name(version, file.sha256),
            num_bytes=file.num_bytes,
        )

    def _commit(self, record: LedgerRecord, *weights: WeightVersion) -> None:
        self.ledger.apply(record, self._writer.commit(record, weights=weights).digest)
