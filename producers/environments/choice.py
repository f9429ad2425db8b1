"""The environment that the configuration names."""

from __future__ import annotations

from typing import TYPE_CHECKING

from producers.environments.names import EnvironmentSpec
from producers.environments.process import EnvironmentLimits

if TYPE_CHECKING:
    from rollog.settings.environment import EnvironmentConfig


def environment_spec(config: EnvironmentConfig) -> EnvironmentSpec:
    """Which environment a run plays."""
    assert config.name is not None
    return EnvironmentSpec(environment=config.name, parameters=config.parameters, python=config.python)


def environment_limits(config: EnvironmentConfig) -> EnvironmentLimits:
    """What its processes may take."""
    return EnvironmentLimits(
        num_processes=config.num_processes,
        episodes_per_process=config.episodes_per_process,
        reset_timeout_seconds=config.reset_timeout_seconds,
        step_timeout_seconds=config.step_timeout_seconds,
        max_memory_bytes=config.max_memory_bytes,
        variables=config.variables,
    )
