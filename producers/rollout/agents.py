"""Sessions of an agent: a program asks the policy over HTTP as often as it likes, and the session records its ids.

    task --key--> agent --call--> endpoint --ids--> engine --turn--> record --answer--> agent --> ... --> end --> sample

What a session goes through:

    | state   | what happens                                                        | until                           |
    | ---     | ---                                                                 | ---                             |
    | open    | a key opens the endpoint; the agent's process runs                  | one of the ends below           |
    | ending  | the agent is killed, its calls are taken out of the engine          | all of them are gone            |
    | closed  | the key opens nothing; the record is read and becomes a response    | -                               |

    | end       | when                                                                            | its sample               |
    | ---       | ---                                                                             | ---                      |
    | returned  | the agent ended by itself                                                       | scored                   |
    | budget    | turns, tokens or context were used up, and it ended, or had its grace           | scored, finish length    |
    | cancelled, expired | the worker's session says so                                           | cancelled, expired       |
    | time_out, idle | `timeout_seconds` passed; or `idle_seconds` without a call                 | failed                   |
    | error     | it raised, its process died, or the record cannot be trained (SessionFailed)    | failed, by that name     |

Between two calls nothing of a session is in the engine, so reloads wait for no agent; a call goes on over a reload as
any response does. Each turn passes `_Session.recorded` before its answer goes out: what has to be durable first is
awaited there.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING

from producers.agents.ports import AgentOrder
from producers.engines.ports import Generation, GenerationRequest, VersionSpan
from producers.engines.stop_texts import StopTexts
from producers.rollout.actions import failed
from producers.rollout.outcomes import unfinished_sample
from producers.rollout.prompts import reward_fields, reward_prompt
from producers.rollout.scoring import Response
from producers.sessions.budgets import Budget
from producers.sessions.errors import Leaving, SessionFailed
from producers.sessions.recorder import Session
from rollog.kernel.errors import (
    AgentFailed,
    AgentIdle,
    AgentTimedOut,
    DataError,
    EngineDied,
    EngineError,
    RewardError,
)
from rollog.rules.seeds import derived_seed
from schemas import FinishReason, Fork, Status, Timings, TurnSpan

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

    from producers.agents.ports import AgentResult, AgentRunner
    from producers.rollout.actions import Ending
    from producers.rollout.engine_calls import EngineCalls
    from producers.rollout.outcomes import Replica
    from producers.rollout.prompts import PromptRenderer
    from producers.sessions.endpoint_thread import EndpointThread
    from producers.sessions.live import RecordedTurn
    from producers.sessions.recording import Recording
    from rollog.kernel.metrics import Metrics
    from schemas import Sample

_take_out_seconds = 10.0
"""Calls that the engine has not given back after this are cancelled."""


class SessionEnd(StrEnum):
    """How a session ended; the table of this module says when."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Agents:
    """Who runs agents, and where they ask the policy."""

    runner: AgentRunner
    endpoint: EndpointThread
    settings: AgentSettings

    async def start(self) -> None:
        """Begin to listen, and make sure that the agent can be run. Raises DataError, SandboxRefused."""
        await self.endpoint.start()
        await self.runner.start()

    async def close(self) -> None:
        """End all agents, then the endpoint. Idempotent."""
        await self.runner.close()
        await self.endpoint.close()


@dataclass(eq=False)
class _Session:
    """One session, as the worker's loop knows it. Its record belongs to the endpoint until that has closed it."""

    replica: Replica
    calls: EngineCalls
    record: Session
    stop_texts: Callable[[tuple[str, ...]], StopTexts | None]
    wait_for_room: Callable[[], Awaitable[None]]
    began_at: float = field(default_factory=time.monotonic)
    is_ending: bool = False
    spent_at: float | None = None
    active_at: float = field(default_factory=time.monotonic)
    num_calls: int = 0
    """Calls under way, as the endpoint last said."""
    num_begun: int = 0
    num_sampled: int = 0
    engine_died: EngineDied | None = None
    in_engine: set[asyncio.Task[object]] = field(default_factory=set)
    has_news: asyncio.Event = field(default_factory=asyncio.Event)
    loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop)

    async def generate(self, input_ids: Sequence[int], max_tokens: int, stop: Sequence[str]) -> Generation:
        """One turn, however many versions it takes. Raises Leaving where the session is ending, EngineError."""
        # While the broker takes nothing, nothing more is generated.
        await self.wait_for_room()
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

    async def recorded(self, turn: RecordedTurn) -> None:
        """A turn is in the record, and its answer waits for this to return."""
        del turn

    def changed(self, num_calls: int) -> None:
        """Calls began or ended. Called on the endpoint's thread."""
        self.loop.call_soon_threadsafe(self._note, num_calls)

    def verdict(self, settings: AgentSettings, *, has_ended: bool) -> SessionEnd | None:
        """How the session ends now, or None. Raises EngineDied."""
        now = time.monotonic()
        ending = self.calls.ending_of(self.replica)
        if self.engine_died is not None:
            raise self.engine_died
        if ending is not None:
            return _end_of(ending)
        if self.record.failure is not None:
            return SessionEnd.ERROR
        if has_ended:
            return SessionEnd.RETURNED
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

    def _note(self, num_calls: int) -> None:
        self.num_calls, self.active_at = num_calls, time.monotonic()
        if self.record.is_spent and self.spent_at is None:
            self.spent_at = self.active_at
        self.has_news.set()

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


class AgentMaker:
    """One session for each replica. Agents, endpoint and engine are closed by whoever made them."""

    def __init__(
        self,
        worker_id: str,
        calls: EngineCalls,
        renderer: PromptRenderer,
        agents: Agents,
        *,
        metrics: Metrics,
        wait_for_room: Callable[[], Awaitable[None]],
    ) -> None:
        self._worker_id = worker_id
        self._calls = calls
        self._renderer = renderer
        self._agents = agents
        self._settings = agents.settings
        self._metrics = metrics
        self._wait_for_room = wait_for_room
        self._sessions: dict[str, _Session] = {}

    async def generate(self, replica: Replica) -> Response | Sample:
        """Run one session to its end, or say in a sample why nothing came of it. Raises EngineDied."""
        session = self._sessions[replica.request_id] = self._begun(replica)
        end = SessionEnd.ERROR
        try:
            end, result = await self._run(session)
            return self._response(session, end, result)
        except EngineDied:
            raise
        except SessionFailed as error:
            ending = self._calls.ending_of(replica) or failed(error.name, str(error))
        except (DataError, AgentFailed, EngineError, RewardError) as error:
            ending = self._calls.ending_of(replica) or failed(type(error).__name__, str(error))
            end = _end_of(ending, error)
        finally:
            del self._sessions[replica.request_id]
            self._count(session, end)
        return unfinished_sample(
            replica,
            self._worker_id,
            ending,
            timings=Timings(generation_seconds=time.monotonic() - session.began_at),
            wasted_tokens=session.num_sampled,
        )

    async def interrupt(self, request_id: str) -> None:
        """Make the matching `generate` end early, as the worker's session says, agent and calls at once."""
        session = self._sessions.get(request_id)
        if session is not None:
            session.has_news.set()
        await self._calls.interrupt(request_id)

    def _begun(self, replica: Replica) -> _Session:
        settings = self._settings
        budget = Budget(
            turns=settings.max_turns,
            tokens=settings.max_tokens,
            turn_tokens=replica.task.sampling.max_tokens,
            context_tokens=self._calls.max_context_tokens,
            forks=settings.max_forks,
        )
        return _Session(replica, self._calls, Session(budget), self._stop_texts, self._wait_for_room)

    async def _run(self, session: _Session) -> tuple[SessionEnd, AgentResult | None]:
        """How the session ended, and what the agent gave where it ended by itself.

        Raises EngineDied, DataError, AgentFailed, and SessionFailed where the record cannot become a sample.
        """
        async with self._opened(session) as key:
            order = self._order(session.replica, key)
            agent = asyncio.create_task(self._agents.runner.run(order), name=f"agent of {order.name}")
            try:
                end = await self._watch(session, agent)
            finally:
                session.is_ending = True
                agent.cancel()
                await asyncio.wait([agent])
        return _ended(session, end, agent)

    @asynccontextmanager
    async def _opened(self, session: _Session) -> AsyncIterator[str]:
        """The session's key, which opens the endpoint until the end; then no call of it is in the engine."""
        name, endpoint = session.replica.request_id, self._agents.endpoint
        key = await endpoint.open(name, session.record, session)
        try:
            yield key
        finally:
            session.is_ending = True
            await self._take_out(session)
            await endpoint.end(name, key)

    async def _take_out(self, session: _Session) -> None:
        """Have the engine give back all calls, with the tokens that they have."""
        await self._calls.interrupt(session.replica.request_id)
        if session.in_engine:
            await asyncio.wait(list(session.in_engine), timeout=_take_out_seconds)

    async def _watch(self, session: _Session, agent: asyncio.Task[AgentResult]) -> SessionEnd:
        while (end := session.verdict(self._settings, has_ended=agent.done())) is None:
            session.has_news.clear()
            news = asyncio.ensure_future(session.has_news.wait())
            try:
                await asyncio.wait(
                    {agent, news},
                    timeout=session.seconds_left(self._settings),
                    return_when=asyncio.FIRST_COMPLETED,
                )
            finally:
                news.cancel()
        return end

    def _order(self, replica: Replica, key: str) -> AgentOrder:
        """What the agent is told. Raises DataError."""
        prompt = replica.task.prompt
        return AgentOrder(
            name=replica.request_id,
            prompt_id=prompt.prompt_id,
            prompt=reward_prompt(prompt),
            fields=reward_fields(prompt),
            seed=replica.seed,
            address=self._agents.endpoint.address,
            key=key,
        )

    def _response(self, session: _Session, end: SessionEnd, result: AgentResult | None) -> Response:
        """What the session comes to. Raises SessionFailed, RewardError."""
        recording = session.record.recording(self._calls.digest_of)
        rows, last = recording.rows, recording.turns[-1]
        answer = None if result is None else result.answer
        if answer is None:
            tokens = recording.sequences[last.sequence].token_ids
            answer = self._renderer.text(tokens[last.start : last.end].tolist())
        reward = None
        if self._settings.has_own_reward:
            reward = None if result is None else result.reward
            if reward is None:
                raise RewardError('the agent gave no reward, and agent.reward = "agent"; return one')
        return Response(
            replica=session.replica,
            generation=Generation(
                token_ids=rows.token_ids,
                behaviour_logprobs=rows.behaviour_logprobs,
                spans=tuple(
                    VersionSpan(version=each.version, start=each.start, end=each.end)
                    for each in rows.segments
                ),
                finish_reason=FinishReason.LENGTH if end is SessionEnd.BUDGET else FinishReason.STOP,
            ),
            loss_mask=rows.loss_mask,
            prompt_token_ids=rows.context.tolist(),
            text=answer,
            generation_seconds=time.monotonic() - session.began_at,
            reward=reward,
            forks=_forks(recording),
            turns=_turns(recording),
            wasted_tokens=session.num_sampled - sum(turn.num_tokens for turn in recording.turns),
            metadata={"session_end": end.value},
        )

    def _stop_texts(self, texts: tuple[str, ...]) -> StopTexts | None:
        return StopTexts(texts, self._renderer.raw_text) if texts else None

    def _count(self, session: _Session, end: SessionEnd) -> None:
        metrics, counts = self._metrics, session.record.counts
        metrics.rollout_sessions.labels(end.value).inc()
        metrics.rollout_turns.inc(session.record.num_turns)
        for kind, number in counts.items():
            metrics.rollout_calls.labels(kind.value).inc(number)


def _ended(
    session: _Session, end: SessionEnd, agent: asyncio.Task[AgentResult]
) -> tuple[SessionEnd, AgentResult | None]:
    """The end with what the agent gave. Raises what makes the session fail."""
    record = session.record
    error = AgentFailed("the agent was ended") if agent.cancelled() else agent.exception()
    has_spent = record.is_spent or (record.is_out_of_room and error is not None)
    match end:
        case SessionEnd.RETURNED if has_spent:
            return SessionEnd.BUDGET, None if error is not None else agent.result()
        case SessionEnd.RETURNED if error is not None:
            raise error
        case SessionEnd.RETURNED:
            return end, agent.result()
        case SessionEnd.BUDGET:
            return end, None if error is not None else agent.result()
        case SessionEnd.TIME_OUT:
            raise AgentTimedOut("the agent took longer than agent.timeout_seconds, and was killed")
        case SessionEnd.IDLE:
            raise AgentIdle("the agent asked nothing for agent.idle_seconds, and was killed")
    raise record.failure or AgentFailed(f"the session ended: {end.value}")


def _end_of(ending: Ending, error: Exception | None = None) -> SessionEnd:
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


def _forks(recording: Recording) -> tuple[Fork, ...]:
    return tuple(
        Fork(
            parent=fork.parent,
            shared=fork.shared,
            context=fork.rows.context,
            token_ids=fork.rows.token_ids,
            behaviour_logprobs=fork.rows.behaviour_logprobs,
            loss_mask=fork.rows.loss_mask,
            segments=fork.rows.segments,
            reason=fork.reason,
        )
        for fork in recording.forks
    )


def _turns(recording: Recording) -> tuple[TurnSpan, ...]:
    return tuple(
        TurnSpan(
            number=turn.number,
            sequence=turn.sequence,
            start=turn.start,
            end=turn.end,
            finish_reason=turn.finish_reason,
            untrained=None if turn.untrained is None else turn.untrained.value,
        )
        for turn in recording.turns
    )
