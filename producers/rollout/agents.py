"""Sessions of an agent: a program asks the policy over HTTP as often as it likes, and the session records its ids.

    task --key--> agent --call--> endpoint --ids--> engine --turn--> record --answer--> agent --> ... --> end --> sample

A session is open while the agent's process runs and its key opens the endpoint. At its end the agent is killed, its
calls are taken out of the engine, the key opens nothing any more, and the record becomes a response to be scored, or
the sample that says why there is none (`SessionEnd`).

Between two calls nothing of a session is in the engine, so reloads wait for no agent; a call goes on over a reload as
any response does.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from producers.agents.ports import AgentOrder
from producers.engines.ports import Generation, VersionSpan
from producers.engines.stop_texts import StopTexts
from producers.rollout.actions import failed
from producers.rollout.agent_sessions import AgentSettings, RunningSession, SessionEnd, end_of
from producers.rollout.call_places import CallPlaces
from producers.rollout.outcomes import unfinished_sample
from producers.rollout.prompts import reward_fields, reward_prompt
from producers.rollout.scoring import Response
from producers.sessions.budgets import Budget
from producers.sessions.errors import SessionFailed
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
from schemas import FinishReason, Fork, Timings, TurnSpan

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from producers.agents.ports import AgentResult, AgentRunner
    from producers.rollout.engine_calls import EngineCalls
    from producers.rollout.outcomes import Replica
    from producers.rollout.prompts import PromptRenderer
    from producers.rollout.turn_log import DurableTurns
    from producers.sessions.process import SessionEndpoint
    from producers.sessions.recording import Recording
    from rollog.kernel.metrics import Metrics
    from schemas import Sample

_take_out_seconds = 10.0
"""Calls that the engine has not given back after this are cancelled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Agents:
    """Who runs agents, and where they ask the policy."""

    runner: AgentRunner
    endpoint: SessionEndpoint
    settings: AgentSettings

    async def start(self) -> None:
        """Begin to listen, and make sure that the agent can be run.

        Raises ConfigError, DataError, SandboxRefused, OSError.
        """
        await self.endpoint.start()
        await self.runner.start()

    async def close(self) -> None:
        """End all agents, then the endpoint. Idempotent."""
        await self.runner.close()
        await self.endpoint.close()


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
        max_calls: int,
        wait_for_room: Callable[[], Awaitable[None]],
        turns: DurableTurns | None = None,
    ) -> None:
        """At most `max_calls` calls are in the engine at once; `wait_for_room` holds back the next ones."""
        self._worker_id = worker_id
        self._calls = calls
        self._renderer = renderer
        self._agents = agents
        self._settings = agents.settings
        self._metrics = metrics
        self._turns_kept = turns
        self._wait_for_room = wait_for_room
        self._places = CallPlaces(max_calls)
        self._sessions: dict[str, RunningSession] = {}

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
            end = end_of(ending, error)
        except (DataError, AgentFailed, EngineError, RewardError) as error:
            ending = self._calls.ending_of(replica) or failed(type(error).__name__, str(error))
            end = end_of(ending, error)
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

    def _begun(self, replica: Replica) -> RunningSession:
        settings = self._settings
        budget = Budget(
            turns=settings.max_turns,
            tokens=settings.max_tokens,
            turn_tokens=replica.task.sampling.max_tokens,
            context_tokens=self._calls.max_context_tokens,
            forks=settings.max_forks,
        )
        return RunningSession(
            replica, self._calls, Session(budget), self._stop_texts, self._wait_for_room, self._places
        )

    async def _run(self, session: RunningSession) -> tuple[SessionEnd, AgentResult | None]:
        """How the session ended, and what the agent gave where it ended by itself.

        Raises EngineDied, DataError, AgentFailed, and SessionFailed where the record cannot become a sample.
        """
        if self._turns_kept is not None:
            task, may_resume = session.replica.task, self._settings.may_resume
            session.journal = await self._turns_kept.journal(task, may_resume=may_resume)
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
    async def _opened(self, session: RunningSession) -> AsyncIterator[str]:
        """The session's key, which opens the endpoint until the end; then no call of it is in the engine."""
        name, endpoint = session.replica.request_id, self._agents.endpoint
        key = await endpoint.open(name, session.record, session)
        try:
            yield key
        finally:
            session.is_ending = True
            await self._take_out(session)
            await endpoint.end(name)

    async def _take_out(self, session: RunningSession) -> None:
        """Have the engine give back all calls, with the tokens that they have."""
        await self._calls.interrupt(session.replica.request_id)
        if session.in_engine:
            await asyncio.wait(list(session.in_engine), timeout=_take_out_seconds)

    async def _watch(self, session: RunningSession, agent: asyncio.Task[AgentResult]) -> SessionEnd:
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

    def _response(self, session: RunningSession, end: SessionEnd, result: AgentResult | None) -> Response:
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
            resumed_from=None if session.journal is None else session.journal.resumed_from,
            wasted_tokens=session.num_sampled
            + session.num_served
            - sum(turn.num_tokens for turn in recording.turns),
            metadata={"session_end": end.value},
        )

    def _stop_texts(self, texts: tuple[str, ...]) -> StopTexts | None:
        return StopTexts(texts, self._renderer.raw_text) if texts else None

    def _count(self, session: RunningSession, end: SessionEnd) -> None:
        metrics, counts = self._metrics, session.record.counts
        metrics.rollout_sessions.labels(end.value).inc()
        metrics.rollout_turns.inc(session.record.num_turns)
        for kind, number in counts.items():
            metrics.rollout_calls.labels(kind.value).inc(number)


def _ended(
    session: RunningSession, end: SessionEnd, agent: asyncio.Task[AgentResult]
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
