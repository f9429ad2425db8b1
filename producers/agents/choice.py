"""The agents that the configuration names."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from producers.agents.commands import CommandWords, PlainCommands, SandboxedCommands
from producers.agents.process import FunctionAgents, FunctionLimits
from producers.sandbox.config import SandboxConfig, SandboxLimits
from producers.sandbox.sandbox import Sandbox

if TYPE_CHECKING:
    from producers.agents.ports import AgentRunner
    from rollog.settings.agent import AgentConfig

_more_seconds = 30.0
"""What a sandbox allows beyond the agent's own time-out, which ends it by its name."""


def agent_runner(config: AgentConfig, socket_path: Path | None = None) -> AgentRunner:
    """Who runs the agent; nothing is started. `socket_path` is where a sandbox reaches the endpoint."""
    if config.function is not None:
        limits = FunctionLimits(variables=config.variables, max_memory_bytes=config.max_memory_bytes)
        return FunctionAgents(config.function, config.python, limits)
    variables = {name: os.environ[name] for name in config.variables if name in os.environ}
    words = CommandWords(command=config.command, variables=variables)
    if config.sandbox == "none":
        return PlainCommands(words)
    seconds = config.timeout_seconds + _more_seconds
    limits_of_cells = SandboxLimits(
        wall_seconds=seconds, cpu_seconds=seconds, memory_bytes=config.max_memory_bytes, num_processes=256
    )
    sandbox = Sandbox(
        SandboxConfig(
            limits=limits_of_cells,
            read_only=tuple(Path(path).expanduser().resolve() for path in config.read_only),
            endpoint=socket_path,
        )
    )
    return SandboxedCommands(words, sandbox)
