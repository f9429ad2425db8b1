"""What a rollout worker needs of agents."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping

    from producers.rewards.functions import RewardResult


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentOrder:
    """One task for an agent, and where it asks the policy: `address` is what `/v1` is added to."""

    name: str
    prompt_id: str
    prompt: str | list[dict[str, Any]]
    fields: Mapping[str, Any]
    seed: int
    address: str
    key: str = field(repr=False)
    model: str = "policy"


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentResult:
    """What an agent gave when it ended: its answer, and a reward of its own. None where it gave none."""

    answer: str | None = None
    reward: RewardResult | None = None


class AgentRunner(Protocol):
    """Runs agents, any number at once."""

    async def start(self) -> None:
        """Make sure that the agent can be run. Raises DataError, SandboxRefused."""
        ...

    async def run(self, order: AgentOrder) -> AgentResult:
        """Run one agent to its end. Raises AgentFailed. Cancelled, it ends the agent with all that it started."""
        ...

    async def close(self) -> None:
        """End everything. Idempotent."""
        ...
