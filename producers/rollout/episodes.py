"""Whole episodes of an environment: the policy and the environment speak in turns, and the session records their ids.

    seed --reset--> opening --> engine --turn--> environment --answer--> engine --turn--> ... --> over --> sample

Text of the environment is context: it stands between the turns (`producers.rollout.speech`) and is never trained. Turns
are extended by ids and not rendered again. Many episodes of a worker are under way at once; one that waits for its
environment has nothing in the engine, so reloads do not wait for it.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from producers.engines.ports import Generation, GenerationRequest, VersionSpan
from producers.engines.stop_texts import StopTexts
from producers.rewards.functions import RewardResult
from producers.rollout.actions import failed
from producers.rollout.outcomes import unfinished_sample
from producers.rollout.prompts import reward_fields
from producers.rollout.scoring import Response
from producers.sessions.budgets import Budget
from producers.sessions.errors import BudgetSpent, CallsInFlight, Overlong, SessionFailed
from producers.sessions.recorder import Session
from rollog.kernel.errors import DataError, EngineDied, EngineError, EnvironmentFailed
from rollog.rules.seeds import derived_seed
from schemas import FinishReason, Timings

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from producers.environments.names import EnvironmentSpec
    from producers.environments.pool import EnvironmentPool, EpisodeHandle
    from producers.rollout.engine_calls import EngineCalls
    from producers.rollout.outcomes import Replica
    from producers.rollout.prompts import PromptRenderer
    from producers.rollout.resumption import ResumableResponse
    from producers.rollout.speech import Speech
    from rollog.kernel.metrics import Metrics
    from schemas import Sample

_budget_ended = (BudgetSpent, CallsInFlight, Overlong)


class _Interrupted(Exception):
    """The session has set an end to the rollout."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeSettings:
    """What is played. `max_turns` bounds the policy's turns, where the environment's own bound is larger or none.

    With `with_turn_rewards` each turn is trained by the rewards from it on; without, all by the episode's sum.
    """

    environment: EnvironmentSpec
    max_turns: int
    with_turn_rewards: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Episodes:
    """Where episodes are played, and which."""

    pool: EnvironmentPool
    settings: EpisodeSettings
    speech: Callable[[], Speech]
    """Begins what policy and environment say to each other in one episode."""


@dataclass(slots=True, eq=False)
class _Played:
    """What an episode has come to so far."""

    session: Session
    began_at: float
    rewards: list[float]
    input_ids: list[int]
    is_over: bool = False
    is_truncated: bool = False
    num_recorded_tokens: int = 0
    response: ResumableResponse | None = None
    """The call under way, or one that came to nothing."""


class EpisodeMaker:
    """One episode of one seat for each replica. Environments and engine are closed by whoever made them."""

    def __init__(
        self,
        worker_id: str,
        calls: EngineCalls,
        renderer: PromptRenderer,
        episodes: Episodes,
        metrics: Metrics,
    ) -> None:
        self._worker_id = worker_id
        self._calls = calls
        self._renderer = renderer
        self._pool = episodes.pool
        self._settings = episodes.settings
        self._speech = episodes.speech
        self._metrics = metrics
        self._waiting: dict[str, asyncio.Task[Any]] = {}

    async def generate(self, replica: Replica) -> Response | Sample:
        """Play one episode to its end, or say in a sample why there is none. Raises EngineDied."""
        played = self._begun(replica)
        episode: EpisodeHandle | None = None
        try:
            seed = _seed_of(replica)
            episode = await self._wait_for(replica, self._pool.open(self._settings.environment, seed))
            await self._play(replica, played, episode)
            return self._response(replica, played)
        except EngineDied:
            raise
        except _Interrupted:
            ending = self._calls.ending_of(replica)
            assert ending is not None
        except (DataError, EngineError, EnvironmentFailed) as error:
            ending = self._calls.ending_of(replica) or failed(type(error).__name__, str(error))
        except SessionFailed as error:
            ending = self._calls.ending_of(replica) or failed(error.name, str(error))
        finally:
            if episode is not None:
                await episode.close()
        return unfinished_sample(
            replica,
            self._worker_id,
            ending,
            timings=Timings(generation_seconds=time.monotonic() - played.began_at),
            wasted_tokens=_num_sampled(played),
        )

    async def interrupt(self, request_id: str) -> None:
        """Make the matching `generate` end early, as the session says, whether engine or environment is at work."""
        waiting = self._waiting.get(request_id)
        if waiting is not None:
            waiting.cancel()
        await self._calls.interrupt(request_id)

    def _begun(self, replica: Replica) -> _Played:
        sampling = replica.task.sampling
        context = self._calls.max_context_tokens
        budget = Budget(
            turns=self._settings.max_turns,
            tokens=context,
            turn_tokens=sampling.max_tokens,
            context_tokens=context,
            forks=0,
        )
        return _Played(Session(budget), time.monotonic(), [], [])

    async def _play(self, replica: Replica, played: _Played, episode: EpisodeHandle) -> None:
        """Let policy and environment take turns until one of them, or a budget, ends it."""
        observation = await self._wait_for(replica, episode.reset())
        _require_one_seat(episode)
        speech = self._speech()
        played.input_ids = speech.opening(observation.text)
        while not played.is_over:
            turn = await self._turn(replica, played)
            if turn is None:
                played.is_over = played.is_truncated = True
                return
            action = self._renderer.text(turn)
            asked_at = time.monotonic()
            result = await self._wait_for(replica, episode.step(action))
            self._metrics.rollout_environment_seconds.observe(time.monotonic() - asked_at)
            played.rewards.append(result.reward)
            played.is_over, played.is_truncated = result.is_over, result.truncated
            if not result.is_over:
                played.input_ids = speech.reply(played.input_ids, turn, action, result.observation.text)

    async def _turn(self, replica: Replica, played: _Played) -> list[int] | None:
        """The policy's next tokens; None where no budget is left. Raises _Interrupted, SessionFailed, EngineError."""
        # Between this look and the call in the engine nothing is awaited, so an interruption finds one or the other.
        if self._calls.ending_of(replica) is not None:
            raise _Interrupted
        try:
            call = played.session.ask(len(played.input_ids))
        except _budget_ended:
            if not played.session.num_turns:
                raise DataError(
                    f"the environment's first text has {len(played.input_ids)} tokens and the context takes "
                    f"{self._calls.max_context_tokens}: raise model.max_context_tokens"
                ) from None
            return None
        response = self._calls.response_to(self._request(replica, played, call.max_tokens))
        played.response = response
        await self._calls.generate(replica, response)
        generation = response.generation
        ending = self._calls.ending_after(replica, generation)
        if ending is not None:
            played.session.abandon(call, len(generation.token_ids))
            if self._calls.ending_of(replica) is not None:
                raise _Interrupted
            raise EngineError(ending.error_message or "the engine ended the request")
        played.session.record(played.input_ids, generation, call=call)
        played.response = None
        played.num_recorded_tokens += len(generation.token_ids)
        token_ids: list[int] = generation.token_ids.tolist()
        return token_ids

    def _request(self, replica: Replica, played: _Played, max_tokens: int) -> GenerationRequest:
        sampling, number = replica.task.sampling, played.session.num_turns
        return GenerationRequest(
            request_id=f"{replica.request_id}#{number}",
            prompt_token_ids=played.input_ids,
            sampling=replace(sampling, max_tokens=max_tokens),
            seed=derived_seed(replica.seed, number),
            stop=StopTexts(sampling.stop, self._renderer.raw_text) if sampling.stop else None,
        )

    def _response(self, replica: Replica, played: _Played) -> Response:
        rows = played.session.recording(lambda _: "").rows
        reward = RewardResult(
            reward=sum(played.rewards),
            components={"turns": float(len(played.rewards))},
            turn_rewards=tuple(played.rewards) if self._settings.with_turn_rewards else (),
        )
        return Response(
            replica=replica,
            generation=Generation(
                token_ids=rows.token_ids,
                behaviour_logprobs=rows.behaviour_logprobs,
                spans=tuple(
                    VersionSpan(version=each.version, start=each.start, end=each.end)
                    for each in rows.segments
                ),
                finish_reason=FinishReason.LENGTH if played.is_truncated else FinishReason.STOP,
            ),
            loss_mask=rows.loss_mask,
            prompt_token_ids=rows.context.tolist(),
            text=self._renderer.text(rows.token_ids.tolist()),
            generation_seconds=time.monotonic() - played.began_at,
            reward=reward,
        )

    async def _wait_for(self, replica: Replica, work: Coroutine[Any, Any, Any]) -> Any:
        """What the environment answers. Raises _Interrupted where the session sets an end meanwhile."""
        if self._calls.ending_of(replica) is not None:
            work.close()
            raise _Interrupted
        waiting = self._waiting[replica.request_id] = asyncio.ensure_future(work)
        try:
            return await waiting
        except asyncio.CancelledError:
            if self._calls.ending_of(replica) is None or not waiting.cancelled():
                raise
            raise _Interrupted from None
        finally:
            waiting.cancel()
            del self._waiting[replica.request_id]


def _seed_of(replica: Replica) -> int:
    seed = reward_fields(replica.task.prompt).get("seed")
    if not isinstance(seed, int) or isinstance(seed, bool):
        raise DataError(
            f"prompt {replica.task.prompt.prompt_id}: its field `seed` is {seed!r}; an episode needs a whole number"
        )
    return seed


def _require_one_seat(episode: EpisodeHandle) -> None:
    if episode.declaration.num_seats != 1:
        raise DataError(
            f"the environment has {episode.declaration.num_seats} seats and a rollout plays one; name a game for one"
        )


def _num_sampled(played: _Played) -> int:
    """Tokens that the engine made in vain."""
    under_way = 0 if played.response is None else played.response.num_tokens
    return played.num_recorded_tokens + under_way
