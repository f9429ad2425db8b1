"""The OpenAI Agents SDK, unchanged, as a user brings it. Runs under an interpreter of its own, without rollog."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

# Before the import, which reads it.
os.environ["OPENAI_AGENTS_DISABLE_TRACING"] = "1"

from agents import (
    Agent,
    OpenAIChatCompletionsModel,
    Runner,
    function_tool,
)

if TYPE_CHECKING:
    from producers.agents.given import AgentTask, PolicyAccess


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


async def run(task: AgentTask, policy: PolicyAccess) -> str:
    """One agent with one tool."""
    async with policy.async_openai() as client:
        model = OpenAIChatCompletionsModel(model="policy", openai_client=client)
        agent = Agent(
            name="Adder", instructions="Add with the tool.", tools=[function_tool(add)], model=model
        )
        ended = await Runner.run(agent, task.text, max_turns=50)
    return str(ended.final_output)
