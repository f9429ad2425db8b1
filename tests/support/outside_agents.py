"""Agents of the package index, unchanged, as a user brings them. Run under their own interpreters, without rollog."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from producers.agents.given import AgentTask, PolicyAccess

os.environ |= {
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "MSWEA_SILENT_STARTUP": "1",
    "MSWEA_GLOBAL_CONFIG_DIR": str(Path(tempfile.gettempdir()) / "rollog-mini-swe-agent"),
    "OPENAI_AGENTS_DISABLE_TRACING": "1",
}


def preload_mini_swe() -> None:
    """Import what is heavy once, before the processes of sessions are forked."""
    import minisweagent.agents.default
    import minisweagent.environments.local
    import minisweagent.models.litellm_model  # noqa: F401


def mini_swe(task: AgentTask, policy: PolicyAccess) -> str:
    """mini-swe-agent with its own configuration `mini`, which calls a tool for each command of the shell."""
    import yaml
    from minisweagent import package_dir
    from minisweagent.agents.default import DefaultAgent
    from minisweagent.environments.local import LocalEnvironment
    from minisweagent.models.litellm_model import LitellmModel

    config = yaml.safe_load((package_dir / "config" / "mini.yaml").read_text(encoding="utf-8"))
    own: dict[str, Any] = {key: value for key, value in config["agent"].items() if key.endswith("_template")}
    templates = {key: value for key, value in config["model"].items() if key.endswith("_template")}
    with tempfile.TemporaryDirectory() as directory:
        model = LitellmModel(
            model_name="openai/policy",
            model_kwargs={"api_base": policy.base_url, "api_key": policy.api_key},
            cost_tracking="ignore_errors",
            **templates,
        )
        agent = DefaultAgent(model, LocalEnvironment(cwd=directory), cost_limit=0.0, **own)
        ended = agent.run(task.text)
    return f"{ended['exit_status']}: {ended['submission']}"


async def openai_agents(task: AgentTask, policy: PolicyAccess) -> str:
    """The OpenAI Agents SDK with one tool."""
    from agents import Agent, OpenAIChatCompletionsModel, Runner, function_tool

    @function_tool
    def add(a: int, b: int) -> int:
        """Add two numbers."""
        return a + b

    async with policy.async_openai() as client:
        model = OpenAIChatCompletionsModel(model="policy", openai_client=client)
        agent = Agent(name="Adder", instructions="Add with the tool.", tools=[add], model=model)
        ended = await Runner.run(agent, task.text, max_turns=50)
    return str(ended.final_output)
