"""What a trainer needs to know."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from rollog.kernel.errors import ConfigError, LedgerError
from rollog.kernel.snapshot_file import snapshot_seconds
from rollog.rules.kept_weights import KeepingRule
from rollog.settings.changes import following_type
from rollog.settings.in_force import AmendableSections
from trainer.step.ports import StepSettings

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from rollog.rules.ledger_state import LedgerState
    from rollog.settings.groups import FreshnessConfig, GroupConfig
    from rollog.settings.run import BrokerConfig, ModelConfig, RunConfig
    from rollog.settings.training import AlgorithmConfig, OptimizerConfig, TrainerConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerSettings:
    """The sections of the configuration that the trainer reads; `run` is the resolved name of the run.

    `home` is the state directory, `manifest_json` the resolved configuration as it stands in the manifest.
    """

    run: str
    prefix: str
    seed: int
    home: Path
    run_config: RunConfig
    broker: BrokerConfig
    model: ModelConfig
    groups: GroupConfig
    freshness: FreshnessConfig
    sampling_temperature: float
    algorithm: AlgorithmConfig
    optimizer: OptimizerConfig
    trainer: TrainerConfig
    weights_uri: str
    manifest_json: str
    weights_wait_seconds: float = 0.0
    """How long a store elsewhere that does not answer is waited for."""
    shared: Path | None = None
    """What trainer and workers of this machine share in memory; None where they share nothing."""
    has_patches: bool = True
    """Whether versions may be stored as what changed since the one before."""
    reward_deadline_seconds: float | None = None
    """How long a sample may wait for its reward; None where all bring it."""
    evaluated_every_steps: int = 0
    """Steps between evaluations: workers may have to load a version for one after newer ones are there."""
    snapshot_every_seconds: float = snapshot_seconds

    @property
    def model_path(self) -> str:
        """Where the model's structure is. Raises ConfigError where it is not set."""
        if self.model.path is None:
            raise ConfigError(
                "model.path is not set; name a directory or a Hugging Face causal language model"
            )
        return self.model.path

    @property
    def amendable(self) -> AmendableSections:
        """The sections with keys that may change while the run goes on."""
        return AmendableSections(
            run=self.run_config,
            freshness=self.freshness,
            algorithm=self.algorithm,
            optimizer=self.optimizer,
            trainer=self.trainer,
        )

    @property
    def step_settings(self) -> StepSettings:
        """What the training engine needs of them for a step."""
        return StepSettings(
            algorithm=self.algorithm,
            optimizer=self.optimizer,
            num_optimizer_steps=self.run_config.num_steps
            * self.trainer.num_epochs
            * self.trainer.num_minibatches,
        )

    @property
    def keeping_rule(self) -> KeepingRule:
        """Which versions of the weights stay."""
        return KeepingRule(
            newest=self.trainer.keep_newest_weights,
            every=self.trainer.keep_every_weights,
            evaluated_every=self.evaluated_every_steps,
        )

    @property
    def checkpoints(self) -> Path:
        """Where checkpoints of this run are kept."""
        return self.home / "runs" / self.run / "checkpoints"

    @property
    def failed_batches(self) -> Path:
        """Where it is noted which samples were in steps that failed."""
        return self.home / "runs" / self.run / "failed-batches.json"

    @property
    def snapshot(self) -> Path:
        """Where the trainer keeps what it has read of the log."""
        return self.home / "runs" / self.run / "trainer-snapshot.json"

    @property
    def downloads(self) -> Path:
        """Where weights from a remote store are put."""
        return self.home / "runs" / self.run / "weights"


def amended(settings: TrainerSettings, changes: Mapping[str, object]) -> TrainerSettings:
    """The settings with these keys replaced. Raises ConfigError for keys and values that do not fit."""
    after = settings.amendable.with_changes(changes)
    return replace(
        settings,
        run_config=after.run,
        freshness=after.freshness,
        algorithm=after.algorithm,
        optimizer=after.optimizer,
        trainer=after.trainer,
    )


def changed_by_type(settings: TrainerSettings, changes: Mapping[str, object]) -> TrainerSettings:
    """The settings with these keys replaced, and with a new `algorithm.type` its defaults.

    For what somebody asks for. What the ledger has recorded is complete: it goes through `amended`. Raises ConfigError.
    """
    return amended(settings, following_type(settings.algorithm, changes))


def settings_at(settings: TrainerSettings, ledger: LedgerState, revision: int) -> TrainerSettings:
    """What the manifest's `settings` became by `revision`. Raises LedgerError where an amend record does not fit."""
    try:
        return amended(settings, ledger.changed_settings(revision))
    except ConfigError as error:
        raise LedgerError(
            f"the settings of revision {revision} in the ledger do not fit this version of rollog ({error}); "
            "use the version that wrote them"
        ) from error
