"""Whether the agent can be run here, and whether the model's chat template serves sessions."""

from __future__ import annotations

import asyncio
import shutil
from typing import TYPE_CHECKING

from producers.agents.choice import agent_runner
from producers.engines.model_fit import fetch_config
from producers.rollout.agent_parts import conversation_renderer, require_endpoint
from producers.rollout.prompts import load_tokenizer
from producers.sessions.errors import BadRequest
from producers.sessions.rendering import Conversation
from rollog.kernel.errors import ConfigError, SandboxRefused
from rollog.run.finding import Finding

if TYPE_CHECKING:
    from rollog.settings.agent import AgentConfig
    from rollog.settings.settings import Settings


def agent(settings: Settings) -> list[Finding]:
    """The template tried, the function imported or the sandbox tested. Raises ConfigError, DataError."""
    if not settings.agent.is_given:
        return []
    require_endpoint()
    return [*_template(settings), *_program(settings.agent)]


def _template(settings: Settings) -> list[Finding]:
    name = settings.model.tokenizer or settings.model.path
    if name is None:
        raise ConfigError(
            "agents need a model with a chat template, which the demo's has not: set model.path"
        )
    fetch_config(name)
    renderer = conversation_renderer(settings.agent, settings.model, load_tokenizer(name))
    try:
        renderer.render(Conversation(messages=[{"role": "user", "content": "hello"}]), [])
    except BadRequest as error:
        raise ConfigError(
            f"the chat template of {name!r} refuses a conversation of one message: {error}; agents need one that "
            "renders messages of system, user, assistant and tool"
        ) from error
    found = renderer.glue.self_test()
    missing = [kind for kind, appends in found.items() if not appends]
    shown = f"the chat template appends {', '.join(kind for kind, appends in found.items() if appends) or 'nothing'}"
    if not missing:
        return [Finding(what="agent", found=shown)]
    remedy = (
        f"behind an answer it does not append messages of {', '.join(missing)}, so each call that brings one forks, "
        f"and a session has at most agent.max_forks = {settings.agent.max_forks}"
    )
    is_hopeless = not found["user"] and not found["tool"] and settings.agent.max_forks == 0
    return [Finding(what="agent", found=shown, remedy=remedy, is_needed=is_hopeless)]


def _program(config: AgentConfig) -> list[Finding]:
    if config.sandbox == "none" and shutil.which(config.command[0]) is None:
        raise ConfigError(
            f"agent.command = {list(config.command)}: there is no program {config.command[0]!r} here; give its path"
        )
    try:
        asyncio.run(_started(config))
    except SandboxRefused as error:
        raise ConfigError(
            f"agent.command = {list(config.command)} needs the sandbox: {error}; or, for a command that is trusted "
            'with all that this user may do, set agent.sandbox = "none"'
        ) from error
    return [Finding(what="agent", found=config.name)]


async def _started(config: AgentConfig) -> None:
    runner = agent_runner(config)
    try:
        await runner.start()
    finally:
        await runner.close()
