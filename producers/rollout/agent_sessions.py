"""One session of an agent as the worker's loop knows it: its calls of the engine, and when it has to end.

| end                | when                                                                 | its sample           |
| ---                | ---                                                                  | ---                  |
| returned           | the agent ended by itself                                            | scored               |
| budget             | turns, tokens or context were used up, and it ended or had its grace | scored, length       |
| cancelled, expired | the worker's own session says so                                     | cancelled, expired   |
| time_out, idle     | `timeout_seconds` passed, or `idle_seconds` without a call           | failed               |
| error              | it raised, its process died, or its record cannot be trained         | failed, by that name |

Where turns are kept, `RunningSession.generate` returns when the turn is on the log, so before its answer goes out.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING

from producers.engines.ports import Generation, GenerationRequest
from producers.rollout.publishing import TurnTooLarge
from producers.sessions.errors import Leaving, SessionFailed
from rollog.kernel.errors import AgentIdle, AgentTimedOut, EngineDied, EngineError
from rollog.rules.seeds import derived_seed
from schemas import FinishReason, Status

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from producers.engines.stop_texts import StopTexts
    from producers.rollout.actions import Ending
    from producers.rollout.call_places import CallPlaces
    from producers.rollout.engine_calls import EngineCalls
    from producers.rollout.outcomes import Replica
    from producers.sessions.journal import Journal
    from producers.sessions.recorder import Session
    from rollog.kernel.errors import EndpointDied


class SessionEnd(StrEnum):
    """How a session ended; the table above says when."""

    RETURNED = "returned"
    BUDGET = "budget"
    CANCELLED = "cancelled"
    EXPIRED = "expired"
    TIME_OUT = "time_out"
    IDLE = "idle"
    ERROR = "error"


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentSettings:
    """What a session may take. With `has_own_reward` the agent's own reward counts, and it must give one."""

    max_turns: int
    max_tokens: int
    max_forks: int = 64
    timeout_seconds: float = 300.0
    idle_seconds: float | None = None
    grace_seconds: float = 5.0
    has_own_reward: bool = False
    may_resume: bool = True
    """Whether an agent that begins anew may be given the answers of an attempt before."""


@dataclass(eq=False)
class RunningSession:
    """One session, as the worker's loop knows it. Its record changes until the endpoint has ended it."""

    replica: Replica
    calls: EngineCalls
    record: Session
    stop_texts: Callable[[tuple[str, ...]], StopTexts | None]
    wait_for_room: Callable[[], Awaitable[None]]
    places: CallPlaces
    began_at: float = field(default_factory=time.monotonic)
    is_ending: bool = False
    spent_at: float | None = None
    active_at: float = field(default_factory=time.monotonic)
    num_calls: int = 0
    """Calls under way, as the endpoint last said."""
    num_begun: int = 0
    num_sampled: int = 0
    num_served: int = 0
    """Tokens of an attempt before that were given again."""
    journal: Journal | None = None
    """Where its turns are kept, and may be served from again."""
    engine_died: EngineDied | None = None
    in_engine: set[asyncio.Task[object]] = field(default_factory=set)
    has_news: asyncio.Event = field(default_factory=asyncio.Event)

    async def generate(self, input_ids: Sequence[int], max_tokens: int, stop: Sequence[str]) -> Generation:
        """One turn, however many versions it takes; where turns are kept, it is on the log when this returns.

        Raises Leaving where the session is ending, EngineError, SessionFailed.
        """
        served = None if self.journal is None else self.journal.served(input_ids)
        if served is not None:
            self.num_served += len(served.token_ids)
            return served
        # While the broker takes nothing, nothing more is generated.
        await self.wait_for_room()
        async with self.places.place(self.replica.request_id):
            turn = await self._generate(input_ids, max_tokens, stop)
        if self.journal is not None and turn.finish_reason is not FinishReason.ABORT:
            await self._keep(self.journal, input_ids, turn)
        return turn

    async def _keep(self, journal: Journal, input_ids: Sequence[int], turn: Generation) -> None:
        try:
            await journal.keep(input_ids, turn)
        except TurnTooLarge as error:
            raise SessionFailed(type(error).__name__, str(error)) from error

    async def _generate(self, input_ids: Sequence[int], max_tokens: int, stop: Sequence[str]) -> Generation:
        if self.is_ending or self.calls.ending_of(self.replica) is not None:
            raise Leaving("the session is ending, and no call is made any more")
        response = self.calls.response_to(self._request(input_ids, max_tokens, stop))
        task = asyncio.current_task()
        assert task is not None
        self.in_engine.add(task)
        try:
            await self.calls.generate(self.replica, response)
        except EngineDied as error:
            self.engine_died = error
            self.has_news.set()
            raise
        finally:
            self.in_engine.discard(task)
            self.num_sampled += response.num_tokens
        turn = response.generation
        ending = self.calls.ending_after(self.replica, turn)
        if ending is not None and not self.is_ending and self.calls.ending_of(self.replica) is None:
            raise EngineError(ending.error_message or "the engine ended the request")
        return turn

    def changed(self, num_calls: int) -> None:
        """Calls began or ended; so many are under way."""
        self.num_calls, self.active_at = num_calls, time.monotonic()
        if self.record.is_spent and self.spent_at is None:
            self.spent_at = self.active_at
        self.has_news.set()

    def lost(self, error: EndpointDied) -> None:
        """Nobody serves the session any more: the worker ends."""
        self.engine_died = error
        self.has_news.set()

    def verdict(self, settings: AgentSettings, *, has_ended: bool) -> SessionEnd | None:
        """How the session ends now, or None. Raises EngineDied."""
        ending = self.calls.ending_of(self.replica)
        if self.engine_died is not None:
            raise self.engine_died
        if ending is not None:
            return end_of(ending)
        if self.record.failure is not None:
            return SessionEnd.ERROR
        return SessionEnd.RETURNED if has_ended else self._overdue(settings)

    def _overdue(self, settings: AgentSettings) -> SessionEnd | None:
        now = time.monotonic()
        if self.spent_at is not None and now >= self.spent_at + settings.grace_seconds:
            return SessionEnd.BUDGET
        if now >= self.began_at + settings.timeout_seconds:
            return SessionEnd.TIME_OUT
        is_idle = settings.idle_seconds is not None and not self.num_calls
        if is_idle and now >= self.active_at + (settings.idle_seconds or 0.0):
            return SessionEnd.IDLE
        return None

    def seconds_left(self, settings: AgentSettings) -> float:
        """Until the verdict may change by itself."""
        moments = [self.began_at + settings.timeout_seconds]
        if self.spent_at is not None:
            moments.append(self.spent_at + settings.grace_seconds)
        if settings.idle_seconds is not None and not self.num_calls:
            moments.append(self.active_at + settings.idle_seconds)
        return max(0.0, min(moments) - time.monotonic())

    def _request(self, input_ids: Sequence[int], max_tokens: int, stop: Sequence[str]) -> GenerationRequest:
        number, self.num_begun = self.num_begun, self.num_begun + 1
        sampling = self.replica.task.sampling
        texts = tuple(dict.fromkeys([*sampling.stop, *stop]))
        return GenerationRequest(
            request_id=f"{self.replica.request_id}#{number}",
            prompt_token_ids=input_ids,
            sampling=replace(sampling, max_tokens=max_tokens, stop=texts),
            seed=derived_seed(self.replica.seed, number),
            stop=self.stop_texts(texts),
        )


def end_of(ending: Ending, error: Exception | None = None) -> SessionEnd:
    """The end of a session whose sample has this ending, for this error of its own or for none."""
    match ending.status:
        case Status.CANCELLED:
            return SessionEnd.CANCELLED
        case Status.EXPIRED:
            return SessionEnd.EXPIRED
    if isinstance(error, AgentIdle):
        return SessionEnd.IDLE
    # What the worker's session ends as failed took longer than its task may.
    is_late = error is None or isinstance(error, AgentTimedOut)
    return SessionEnd.TIME_OUT if is_late else SessionEnd.ERROR
