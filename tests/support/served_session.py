"""A policy endpoint with one session, and clients of it."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from producers.sessions.budgets import Budget
from producers.sessions.endpoint import PolicyEndpoint
from producers.sessions.live import Policy, PolicyCalls
from producers.sessions.messages import PlainParser
from producers.sessions.recorder import Session
from producers.sessions.text_tokens import TextTokens
from support.chat_models import a_chat_tokenizer, a_renderer
from support.remembering_engine import check_recording
from support.scripted_calls import ScriptedCalls

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from producers.sessions.endpoint_limits import EndpointLimits
    from producers.sessions.recording import Counted, Recording

budget = Budget(turns=50, tokens=10_000, turn_tokens=1000, context_tokens=4000)


@dataclass
class Served:
    endpoint: PolicyEndpoint
    address: str
    key: str
    session: Session
    calls: Any

    def client(self, **options: Any) -> Any:
        """The `openai` package's own client, which retries by itself where `max_retries` is given."""
        from openai import AsyncOpenAI  # noqa: PLC0415  # heavy

        defaults: dict[str, Any] = {
            "base_url": f"{self.address}/v1",
            "api_key": self.key,
            "max_retries": 0,
            "timeout": 20.0,
        }
        return AsyncOpenAI(**defaults | options)

    @property
    def num_connections(self) -> int:
        """Connections whose clients are still there, as the server knows them."""
        return self.endpoint.num_connections

    def counted(self, kind: Counted) -> int:
        return self.session._counts[kind]

    def recording(self) -> Recording:
        """The checked recording of the session so far."""
        recording = self.session.recording(str)
        check_recording(recording, self.calls.engine.sampled)
        return recording


@asynccontextmanager
async def a_served_session(
    calls: PolicyCalls | None = None,
    *,
    texts: list[str | Exception] | None = None,
    parallel_calls: int = 16,
    limits: EndpointLimits | None = None,
    **budget_changes: int,
) -> AsyncIterator[Served]:
    if calls is None:
        calls = ScriptedCalls(texts or ["ok<|im_end|>"])
        calls.gate.set()
    tokenizer = a_chat_tokenizer()
    tokens = TextTokens(tokenizer)
    policy = Policy(
        calls=calls,
        renderer=a_renderer(),
        parser=PlainParser(tokens),
        tokens=tokens,
        parallel_calls=parallel_calls,
    )
    endpoint = PolicyEndpoint(policy, vocabulary_size=len(tokenizer), limits=limits)
    address = await endpoint.start()
    session = Session(replace(budget, **budget_changes))
    try:
        yield Served(endpoint, address, endpoint.open("g0.r0.a0", session), session, calls)
    finally:
        await endpoint.close()


async def until(condition: Callable[[], object], timeout_seconds: float = 20.0) -> None:
    """Let the loop run until something is true; AssertionError after the deadline."""
    deadline = asyncio.get_running_loop().time() + timeout_seconds
    while not condition():
        assert asyncio.get_running_loop().time() < deadline, "the condition was not met in time"
        await asyncio.sleep(0.005)
