"""What an agent's function is called with: its task, and where it asks the policy.

Only the standard library is imported: the function may run under an interpreter that has nothing of ours.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class AgentTask:
    """One task. `prompt` is a text or a list of chat messages, `fields` the other fields of its row of the dataset.

    `seed` differs for each rollout; Python's and numpy's random numbers begin from it.
    """

    prompt_id: str
    prompt: str | list[dict[str, Any]]
    fields: dict[str, Any] = field(default_factory=dict)
    seed: int = 0

    @property
    def messages(self) -> list[dict[str, Any]]:
        """The prompt as chat messages; a plain text is the user's."""
        if isinstance(self.prompt, str):
            return [{"role": "user", "content": self.prompt}]
        return self.prompt

    @property
    def text(self) -> str:
        """The prompt as text; of messages the contents, one below the other."""
        if isinstance(self.prompt, str):
            return self.prompt
        return "\n\n".join(str(message.get("content") or "") for message in self.prompt)


@dataclass(frozen=True)
class PolicyAccess:
    """Where the policy answers, in the OpenAI protocol. The key opens this session alone, and only while it runs."""

    base_url: str
    api_key: str = field(repr=False)
    model: str = "policy"

    def openai(self, **options: Any) -> Any:
        """A client of the package `openai`, which the agent's interpreter must have."""
        from openai import OpenAI  # noqa: PLC0415  # heavy, and not every agent has it

        return OpenAI(base_url=self.base_url, api_key=self.api_key, **options)

    def async_openai(self, **options: Any) -> Any:
        """The same for asyncio."""
        from openai import AsyncOpenAI  # noqa: PLC0415  # heavy, and not every agent has it

        return AsyncOpenAI(base_url=self.base_url, api_key=self.api_key, **options)
