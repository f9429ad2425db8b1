"""Training recorded steps once more: the one redo of recovery, replay and counterfactual training.

Consumes a recorded run; produces an engine that stands at one of its versions, and what each redone step gave. Every
step is trained under the settings of its revision, with the recorded plan. Whether a step gave what was published is
for the caller to judge.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from consumers.named_weights import initial_weights
from rollog.kernel.crash_points import CrashPoint, reach
from rollog.kernel.errors import EngineError, Expired, LedgerError
from rollog.kernel.payloads import PayloadStore
from rollog.settings.scopes import planning_keys
from schemas import Step
from trainer.checkpoints import usable_checkpoint
from trainer.publishing import weights_sha256
from trainer.recorded.environment import compare_environment
from trainer.recorded.history import recorded_groups
from trainer.settings import changed_by_type, settings_at
from trainer.step.batch import check_finite, plan_groups, training_batch

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from rollog.kernel.broker.ports import Broker
    from rollog.kernel.broker.topics import RunTopics
    from rollog.kernel.weights import WeightsStore
    from schemas import Genesis, MicroBatch
    from trainer.checkpoints import Checkpoint
    from trainer.engines.ports import EngineDescription, TrainingEngine
    from trainer.recorded.history import History
    from trainer.settings import TrainerSettings
    from trainer.step.ports import StepResult


@dataclass(frozen=True, kw_only=True)
class Recording:
    """One recorded run and the settings of its manifest. Nothing of it is ever changed.

    `downloads` takes weights from a store that is not on this disk.
    """

    broker: Broker
    topics: RunTopics
    store: WeightsStore
    downloads: Path
    settings: TrainerSettings
    history: History

    @cached_property
    def genesis(self) -> Genesis:
        """The record the run began with. Raises LedgerError while the ledger is empty."""
        if self.history.genesis is None:
            raise LedgerError(f"{self.topics.steps} is empty: no step has been recorded; train the run first")
        return self.history.genesis

    def step(self, version: int) -> Step:
        """The recorded step that made `version`. Raises LedgerError where no step made it."""
        with self.broker.consumer(client_id="trainer-redo") as consumer:
            body = self.history.read_step(consumer, self.topics.steps, version).record.body
        assert isinstance(body, Step)
        return body

    def settings_of(self, step: Step) -> TrainerSettings:
        """The settings under which a step was taken."""
        return settings_at(self.settings, self.history.state, step.revision)


@dataclass(frozen=True, slots=True, kw_only=True)
class RedoneStep:
    """What one redone step gave, beside what was recorded of it.

    The engine has its weights until the next step is asked for.
    """

    version: int
    recorded: Step
    result: StepResult
    weights_sha256: str


def restore(
    engine: TrainingEngine,
    recording: Recording,
    checkpoints: Sequence[Checkpoint],
    *,
    at_most: int,
    may_have_other_ranks: bool = False,
) -> Checkpoint | None:
    """Start `engine` at the newest usable checkpoint up to version `at_most`, None for version 0 from the store.

    A checkpoint whose weights a rebase replaced is passed over. An engine on other ranks than the run's begins with
    version 0, where it is allowed at all: a checkpoint has a part for each rank.

    Raises:
        LedgerError: a checkpoint is of another history; the ledger or the notice of version 0 is missing.
        EngineError: the checkpoint does not hold the published weights, or the engine has other ranks than the run.
        Expired: another trainer deleted the checkpoint meanwhile.
    """
    genesis = recording.genesis
    history = recording.history
    current = [
        candidate for candidate in checkpoints if history.continued_as(candidate.version) == candidate.version
    ]
    checkpoint = usable_checkpoint(current, history.state, at_most=at_most)
    notice = initial_weights(recording.broker, recording.topics, history.state.weights)
    engine.start(recording.settings.model_path, recording.store.fetch(notice, recording.downloads))
    here = engine.describe()
    if here.world_size != genesis.world_size:
        if not may_have_other_ranks:
            raise EngineError(
                f"the run was trained on {genesis.world_size} rank(s), here are {here.world_size}: the recorded plans "
                "share samples among ranks; use as many"
            )
        checkpoint = None
    if checkpoint is not None:
        _load(engine, checkpoint)
        sha256 = weights_sha256(engine, history.weights_identity)
        if sha256 != checkpoint.weights_sha256:
            raise EngineError(not_reproduced(recording, here, checkpoint.version, sha256, checkpoint.name))
    return checkpoint


def _load(engine: TrainingEngine, checkpoint: Checkpoint) -> None:
    try:
        engine.load_checkpoint(checkpoint.directory)
    except Exception as error:
        # A trainer that still works keeps the newest few, and may have deleted this one while the engine started.
        if checkpoint.is_whole:
            raise
        raise Expired(
            f"checkpoint {checkpoint.directory} was deleted while it was loaded, as a trainer does that is at work: "
            "start this one again, it begins from a newer one"
        ) from error


def redo_steps(
    engine: TrainingEngine,
    recording: Recording,
    versions: range,
    overrides: Mapping[str, object] | None = None,
) -> Iterator[RedoneStep]:
    """Train the recorded steps to `versions` on an engine that stands at the version before them.

    `overrides` are settings by dotted key that win over the recorded ones. Where they, or another number of ranks, do
    not fit the recorded plan, the batch is planned anew with the recorded seed. A version that a rebase made is passed
    over: nothing was trained for it.
    """
    history = recording.history
    payloads = PayloadStore(recording.store, recording.topics)
    world_size = engine.describe().world_size
    plans_anew = world_size != recording.genesis.world_size or planning_keys & (overrides or {}).keys()
    with recording.broker.consumer(client_id="trainer-redo") as consumer:
        for version in versions:
            if version in history.rebases:
                continue
            entry = history.read_step(consumer, recording.topics.steps, version)
            recorded = entry.record.body
            assert isinstance(recorded, Step)
            settings = changed_by_type(recording.settings_of(recorded), overrides or {})
            groups = recorded_groups(entry, consumer, recording.topics, payloads)
            plan: tuple[MicroBatch, ...] = recorded.plan
            if plans_anew:
                plan = plan_groups(groups, settings.trainer, world_size=world_size, seed=recorded.seed)
            engine.change_settings(settings.step_settings)
            result = engine.train_step(
                training_batch(
                    groups, plan, settings.algorithm, settings.sampling_temperature, version=version
                )
            )
            check_finite(result, version)
            reach(CrashPoint.REDO_RUNNING)
            yield RedoneStep(
                version=version,
                recorded=recorded,
                result=result,
                weights_sha256=weights_sha256(engine, history.weights_identity),
            )


def not_reproduced(
    recording: Recording, here: EngineDescription, version: int, sha256: str, what: str
) -> str:
    """The message for weights that are not the published ones."""
    expected = recording.history.state.weights[version]
    comparison = compare_environment(recording.genesis, here)
    began = f"elsewhere: {comparison.named_differences}"
    if not comparison.differences:
        began = "on this machine type and these versions"
        if comparison.not_recorded:
            began += f", as far as it recorded them (not its {', '.join(comparison.not_recorded)})"
    return (
        f"{what} gives weights {sha256[:16]} for version {version}, published were {expected[:16]}; the run began "
        f"{began}: "
        "resume on the same machine type and versions, or let the run go on from other weights with "
        "trainer.allow_rebase = true"
    )
