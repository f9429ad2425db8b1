"""A policy endpoint with one session, and clients of it."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import aiohttp

from producers.sessions.budgets import Budget
from producers.sessions.process import EndpointProcess, PolicySource
from producers.sessions.recorder import Session
from support.chat_models import a_policy
from support.local_endpoint import LocalEndpoint
from support.remembering_engine import check_recording
from support.scripted_calls import ScriptedCalls

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from producers.engines.ports import Generation
    from producers.sessions.endpoint_limits import EndpointLimits
    from producers.sessions.process import SessionEndpoint
    from producers.sessions.recording import Counted, Recording
    from rollog.kernel.errors import EndpointDied

budget = Budget(turns=50, tokens=10_000, turn_tokens=1000, context_tokens=4000)


class PolicyCalls(Protocol):
    """Where the tokens of all sessions come from."""

    async def generate(
        self, session: str, input_ids: Sequence[int], max_tokens: int, stop: Sequence[str]
    ) -> Generation: ...


@dataclass
class OneOf:
    """One session of a policy."""

    name: str
    calls: PolicyCalls
    num_calls: int = 0
    losses: list[EndpointDied] = field(default_factory=list)

    async def generate(self, input_ids: Sequence[int], max_tokens: int, stop: Sequence[str]) -> Generation:
        return await self.calls.generate(self.name, input_ids, max_tokens, stop)

    def changed(self, num_calls: int) -> None:
        self.num_calls = num_calls

    def lost(self, error: EndpointDied) -> None:
        self.losses.append(error)


@dataclass
class Served:
    endpoint: SessionEndpoint
    address: str
    key: str
    worker: OneOf
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
        """Connections that the endpoint has not closed yet, nor heard the end of."""
        ours = f":{int(self.address.rpartition(':')[2]):04X}"
        lines = Path("/proc/net/tcp").read_text(encoding="ascii").splitlines()[1:]
        return sum(words[1].endswith(ours) and words[3] in _open_states for words in map(str.split, lines))

    async def another(self, name: str = "g0.r1.a0") -> str:
        """The key of one more session."""
        return await self.endpoint.open(name, Session(budget), OneOf(name, self.calls))

    def counted(self, kind: Counted) -> int:
        return self.session._counts[kind]

    async def recording(self, *, undelivered: int = 0) -> Recording:
        """The checked recording of the session, when it has heard of all answers but so many."""
        await until(lambda: self._num_undelivered() == undelivered)
        recording = self.session.recording(str)
        check_recording(recording, self.calls.engine.sampled)
        return recording

    def _num_undelivered(self) -> int:
        session = self.session
        return sum(not session.is_delivered(number) for number in range(session.num_turns))


_open_states = {"01", "08"}
"""ESTABLISHED and CLOSE_WAIT: the client has left, and this side has not noticed."""


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
    endpoint = served_by.get()(parallel_calls=parallel_calls, limits=limits)
    await endpoint.start()
    session = Session(replace(budget, **budget_changes))
    worker = OneOf(session_name, calls)
    try:
        key = await endpoint.open(session_name, session, worker)
        yield Served(endpoint, endpoint.address, key, worker, session, calls)
    finally:
        await endpoint.close()


session_name = "g0.r0.a0"


def local_endpoint(**options: Any) -> LocalEndpoint:
    """On the test's own loop."""
    return LocalEndpoint(a_policy(), **options)


def endpoint_process(**options: Any) -> EndpointProcess:
    """In a process of its own."""
    return EndpointProcess(PolicySource(function="support.chat_models:a_policy"), **options)


served_by: ContextVar[Callable[..., SessionEndpoint]] = ContextVar("served_by", default=local_endpoint)
"""What `a_served_session` makes its endpoint with."""


async def until(condition: Callable[[], object], timeout_seconds: float = 20.0) -> None:
    """Let the loop run until something is true; AssertionError after the deadline."""
    deadline = asyncio.get_running_loop().time() + timeout_seconds
    while not condition():
        assert asyncio.get_running_loop().time() < deadline, "the condition was not met in time"
        await asyncio.sleep(0.005)


async def post(served: Served, body: object, path: str = "/v1/chat/completions", **headers: str) -> Any:
    """Status and JSON body of a plain request."""
    sent = {"Authorization": f"Bearer {served.key}", "Content-Type": "application/json", **headers}
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    async with (
        aiohttp.ClientSession() as http,
        http.post(served.address + path, data=data, headers=sent) as response,
    ):
        text = await response.text()
        return response.status, json.loads(text) if text.startswith("{") else text
