"""What a rollout worker needs to know."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rollog.settings.agent import AgentConfig

if TYPE_CHECKING:
    from pathlib import Path

    from rollog.settings.environment import EnvironmentConfig
    from rollog.settings.generation import RewardConfig, RolloutConfig, SamplingConfig
    from rollog.settings.run import BrokerConfig, ModelConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutSettings:
    """The sections of the configuration that a rollout worker reads.

    `name` is the first part of its worker id, `home` a directory for downloaded weights and the engine's sockets.
    `model.path` gives structure and tokenizer only: the weights served always come from the store at `weights_uri`.
    """

    run: str
    prefix: str
    seed: int
    name: str
    home: Path
    broker: BrokerConfig
    model: ModelConfig
    sampling: SamplingConfig
    reward: RewardConfig
    environment: EnvironmentConfig
    rollout: RolloutConfig
    weights_uri: str
    num_replicas: int
    """Most rollouts that one task of this run orders."""
    weights_wait_seconds: float = 0.0
    """How long a store elsewhere that does not answer is waited for."""
    shared: Path | None = None
    """What trainer and workers of this machine share in memory; None where they share nothing."""
    adapter_rank: int = 0
    """Of the low-rank adapters that versions hold apart; 0 where they hold whole weights."""
    agent: AgentConfig = field(default_factory=AgentConfig)
    durable_turns: bool = False
    """Whether each turn is on the log before its answer is used."""
