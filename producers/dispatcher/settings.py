"""What a dispatcher needs to know."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rollog.kernel.snapshot_file import snapshot_seconds

if TYPE_CHECKING:
    from pathlib import Path

    from rollog.settings.environment import EnvironmentConfig
    from rollog.settings.generation import (
        DataConfig,
        DispatchConfig,
        EvaluationConfig,
        RewardConfig,
        SamplingConfig,
    )
    from rollog.settings.groups import FreshnessConfig, GroupConfig
    from rollog.settings.run import BrokerConfig, RunConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class DispatcherSettings:
    """The sections of the configuration that the dispatcher reads; `run` is the resolved name of the run."""

    run: str
    prefix: str
    run_config: RunConfig
    broker: BrokerConfig
    groups: GroupConfig
    freshness: FreshnessConfig
    data: DataConfig
    sampling: SamplingConfig
    evaluation: EvaluationConfig
    reward: RewardConfig
    environment: EnvironmentConfig
    dispatch: DispatchConfig
    snapshot: Path | None = None
    """Where this dispatcher keeps its state on disk; None keeps none."""
    snapshot_every_seconds: float = snapshot_seconds
