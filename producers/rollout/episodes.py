"""Whole episodes of an environment: its seats, all played by the policy, and the environment speak in turns.

    seed --reset--> opening --> engine --turn--> environment --answer--> engine --turn--> ... --> over --> samples

Text of the environment is context: it stands between the turns (`producers.rollout.speech`) and is never trained. Turns
are extended by ids and not rendered again. Many episodes of a worker are under way at once; one that waits for its
environment has nothing in the engine, so reloads do not wait for it.

Replicas i*k to i*k + k - 1 of a group are the k seats of one episode, and one task orders them: each seat comes to a
sample of its own, when the episode is over. A task may order fewer, where the others have their samples already. Then
the whole episode is played again, the others by the same policy, and only what was ordered is recorded.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from producers.engines.ports import GenerationRequest
from producers.engines.stop_texts import StopTexts
from producers.rollout.actions import failed
from producers.rollout.outcomes import Replica, replicas_of, unfinished_sample
from producers.rollout.prompts import reward_fields
from producers.rollout.scoring import Response
from producers.rollout.seats import Seat, SeatedEpisode
from producers.sessions.budgets import Budget
from producers.sessions.errors import BudgetSpent, CallsInFlight, Overlong, SessionFailed
from producers.sessions.recorder import Session
from rollog.kernel.errors import DataError, EngineDied, EngineError, EnvironmentFailed
from rollog.rules.seeds import derived_seed
from schemas import Timings

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping, Sequence

    from producers.engines.ports import Generation
    from producers.environments.names import EnvironmentSpec
    from producers.environments.pool import EnvironmentPool, EpisodeHandle
    from producers.rollout.engine_calls import EngineCalls
    from producers.rollout.prompts import PromptRenderer
    from producers.rollout.seats import Played
    from producers.rollout.speech import Speech
    from producers.rollout.turn_log import DurableTurns
    from producers.sessions.budgets import Call
    from rollog.kernel.metrics import Metrics
    from schemas import Sample

_budget_ended = (BudgetSpent, CallsInFlight, Overlong)


class _Interrupted(Exception):
    """The session has set an end to the rollout."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeSettings:
    """What is played. `max_turns` bounds the turns of each seat, where the environment's own bound is larger or none.

    With `with_turn_rewards` each turn is trained by the rewards from it on; without, all by the episode's sum.
    """

    environment: EnvironmentSpec
    max_turns: int
    num_seats: int = 1
    with_turn_rewards: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Episodes:
    """Where episodes are played, and which."""

    pool: EnvironmentPool
    settings: EpisodeSettings
    speech: Callable[[], Speech]
    """Begins what policy and environment say to each other at one seat of an episode."""


class EpisodeMaker:
    """One seat of an episode for each replica. Environments and engine are closed by whoever made them.

    The first replica of an episode that is asked for begins it, and the others get what they come to from it.
    """

    def __init__(
        self,
        worker_id: str,
        calls: EngineCalls,
        renderer: PromptRenderer,
        episodes: Episodes,
        *,
        metrics: Metrics,
        turns: DurableTurns | None = None,
    ) -> None:
        self._worker_id = worker_id
        self._turns_kept = turns
        self._calls = calls
        self._renderer = renderer
        self._pool = episodes.pool
        self._settings = episodes.settings
        self._speech = episodes.speech
        self._metrics = metrics
        self._episodes: dict[tuple[str, int], SeatedEpisode] = {}
        self._by_request: dict[str, SeatedEpisode] = {}

    async def generate(self, replica: Replica) -> Response | Sample:
        """What a seat came to when its episode is over, or a sample that says why there is none. Raises EngineDied."""
        key = (replica.task.task_id, replica.number // self._settings.num_seats)
        episode = self._episodes.get(key) or self._begun(replica)
        self._episodes[key] = self._by_request[replica.request_id] = episode
        episode.missing.discard(replica.number)
        if not episode.missing:
            del self._episodes[key]
        if episode.outcomes is None:
            episode.outcomes = asyncio.create_task(self._outcomes(episode), name=f"episode {key}")
        try:
            return (await episode.outcomes)[replica.number]
        finally:
            del self._by_request[replica.request_id]

    async def interrupt(self, request_id: str) -> None:
        """Make the matching `generate` end early, as the session says, whether engine or environment is at work.

        With it those of the other seats end: they are of the same task.
        """
        episode = self._by_request.get(request_id)
        if episode is None:
            return
        if episode.answer is not None:
            episode.answer.cancel()
        for seat in episode.seats:
            await self._calls.interrupt(seat.replica.request_id)

    async def _outcomes(self, episode: SeatedEpisode) -> dict[int, Response | Sample]:
        """Play an episode to its end, and say of each seat that was ordered what it came to. Raises EngineDied."""
        handle: EpisodeHandle | None = None
        try:
            seed = _seed_of(episode.first)
            handle = await self._wait_for(episode, self._pool.open(self._settings.environment, seed))
            await self._play(episode, handle)
            return {seat.replica.number: self._response(episode, seat) for seat in episode.ordered}
        except EngineDied:
            raise
        except _Interrupted:
            ending = self._calls.ending_of(episode.first)
            assert ending is not None
        except (DataError, EngineError, EnvironmentFailed) as error:
            ending = self._calls.ending_of(episode.first) or failed(type(error).__name__, str(error))
        except SessionFailed as error:
            ending = self._calls.ending_of(episode.first) or failed(error.name, str(error))
        finally:
            if handle is not None:
                await handle.close()
        return {
            seat.replica.number: unfinished_sample(
                seat.replica,
                self._worker_id,
                ending,
                timings=Timings(generation_seconds=time.monotonic() - episode.began_at),
                wasted_tokens=seat.num_sampled + self._wasted_beside(episode, seat),
            )
            for seat in episode.ordered
        }

    def _begun(self, replica: Replica) -> SeatedEpisode:
        """The episode of a replica's seat: which of its seats the task orders, and who plays the others."""
        task, num_seats = replica.task, self._settings.num_seats
        first = replica.number - replica.number % num_seats
        ordered = {each.number for each in replicas_of(task)}.intersection(range(first, first + num_seats))
        seats = [
            Seat(
                replica=Replica(task, first + number - task.replica),
                number=number,
                is_ordered=first + number in ordered,
                session=Session(self._budget(replica)),
                speech=self._speech(),
            )
            for number in range(num_seats)
        ]
        return SeatedEpisode(seats=seats, began_at=time.monotonic(), missing=ordered)

    def _budget(self, replica: Replica) -> Budget:
        context = self._calls.max_context_tokens
        return Budget(
            turns=self._settings.max_turns,
            tokens=context,
            turn_tokens=replica.task.sampling.max_tokens,
            context_tokens=context,
            forks=0,
        )

    async def _play(self, episode: SeatedEpisode, handle: EpisodeHandle) -> None:
        """Let policy and environment take turns until one of them, or a budget, ends it."""
        observation = await self._wait_for(episode, handle.reset())
        self._require_seats(handle)
        await self._open_journals(episode, handle)
        episode.show(observation)
        while observation.to_act:
            said = await self._turns(episode, [episode.seats[number] for number in observation.to_act])
            if said is None:
                episode.is_truncated = True
                return
            asked_at = time.monotonic()
            result = await self._wait_for(episode, handle.step(said))
            self._metrics.rollout_environment_seconds.observe(time.monotonic() - asked_at)
            episode.take(result)
            observation = result.observation

    async def _open_journals(self, episode: SeatedEpisode, handle: EpisodeHandle) -> None:
        """Take up what an earlier attempt came to, unless the environment acts on something outside."""
        if self._turns_kept is None:
            return
        may_resume = handle.declaration.restore != "none"
        for seat in episode.seats:
            seat.journal = await self._turns_kept.journal(seat.replica.task, may_resume=may_resume)

    async def _turns(self, episode: SeatedEpisode, seats: Sequence[Seat]) -> Mapping[int, str] | None:
        """What the seats that are to act say, made at once; None where one of them has no budget left.

        Raises _Interrupted, SessionFailed, EngineError, EnvironmentFailed.
        """
        calls: list[Call] = []
        for seat in seats:
            try:
                calls.append(seat.ask())
            except _budget_ended:
                # Nobody says anything that the environment would not hear.
                seat.require_a_turn(self._calls.max_context_tokens)
                return None
        episode.first_ids = episode.first_ids or seats[0].input_ids
        turns = (self._turn(seat, call) for seat, call in zip(seats, calls, strict=True))
        said = await asyncio.gather(*turns, return_exceptions=True)
        errors = [each for each in said if isinstance(each, BaseException)]
        if errors:
            raise next((error for error in errors if isinstance(error, EngineDied)), errors[0])
        return {seat.number: str(text) for seat, text in zip(seats, said, strict=True)}

    async def _turn(self, seat: Seat, call: Call) -> str:
        """What a seat says next. Raises _Interrupted, SessionFailed, EngineError, TurnTooLarge."""
        generation = None if seat.journal is None else seat.journal.served(seat.input_ids)
        if generation is None:
            generation = await self._generated(seat, call)
            if seat.journal is not None:
                await seat.journal.keep(seat.input_ids, generation)
        text = self._renderer.text(generation.token_ids.tolist())
        seat.said(generation, text, call)
        return text

    async def _generated(self, seat: Seat, call: Call) -> Generation:
        # Between this look and the call in the engine nothing is awaited, so an interruption finds one or the other.
        if self._calls.ending_of(seat.replica) is not None:
            raise _Interrupted
        response = self._calls.response_to(self._request(seat, call.max_tokens))
        seat.under_way = response
        await self._calls.generate(seat.replica, response)
        generation = response.generation
        ending = self._calls.ending_after(seat.replica, generation)
        if ending is not None:
            if self._calls.ending_of(seat.replica) is not None:
                raise _Interrupted
            raise EngineError(ending.error_message or "the engine ended the request")
        return generation

    def _request(self, seat: Seat, max_tokens: int) -> GenerationRequest:
        replica, number = seat.replica, seat.session.num_turns
        sampling = replica.task.sampling
        return GenerationRequest(
            request_id=f"{replica.request_id}#{number}",
            prompt_token_ids=seat.input_ids,
            sampling=replace(sampling, max_tokens=max_tokens),
            seed=derived_seed(replica.seed, number),
            stop=StopTexts(sampling.stop, self._renderer.raw_text) if sampling.stop else None,
        )

    def _response(self, episode: SeatedEpisode, seat: Seat) -> Response:
        played = self._played(episode, seat)
        return Response(
            replica=seat.replica,
            generation=played.generation,
            loss_mask=played.loss_mask,
            prompt_token_ids=played.context.tolist(),
            text=self._renderer.text(played.generation.token_ids.tolist()),
            generation_seconds=time.monotonic() - episode.began_at,
            reward=seat.reward(with_turn_rewards=self._settings.with_turn_rewards),
            wasted_tokens=self._wasted_beside(episode, seat),
            resumed_from=None if seat.journal is None else seat.journal.resumed_from,
        )

    def _played(self, episode: SeatedEpisode, seat: Seat) -> Played:
        if seat.session.num_turns:
            return seat.played(is_truncated=episode.is_truncated)
        versions = [
            span.version
            for other in episode.seats
            if other.session.num_turns
            for span in other.played(is_truncated=False).generation.spans
        ]
        return seat.watched(
            episode.first_ids,
            min(versions),
            max_context_tokens=self._calls.max_context_tokens,
            is_truncated=episode.is_truncated,
        )

    def _wasted_beside(self, episode: SeatedEpisode, seat: Seat) -> int:
        """Tokens of seats without a sample, which the first one with a sample bears."""
        return episode.num_wasted() if seat.replica == episode.first else 0

    def _require_seats(self, handle: EpisodeHandle) -> None:
        num_seats = handle.declaration.num_seats
        if num_seats != self._settings.num_seats:
            raise DataError(
                f"the environment has {num_seats} seat(s) and environment.seats = {self._settings.num_seats}; "
                "make them equal"
            )

    async def _wait_for(self, episode: SeatedEpisode, work: Coroutine[Any, Any, Any]) -> Any:
        """What the environment answers. Raises _Interrupted where the session sets an end meanwhile."""
        if self._calls.ending_of(episode.first) is not None:
            work.close()
            raise _Interrupted
        answer = episode.answer = asyncio.ensure_future(work)
        try:
            return await answer
        except asyncio.CancelledError:
            if self._calls.ending_of(episode.first) is None or not answer.cancelled():
                raise
            raise _Interrupted from None
        finally:
            answer.cancel()
            episode.answer = None


def _seed_of(replica: Replica) -> int:
    seed = reward_fields(replica.task.prompt).get("seed")
    if not isinstance(seed, int) or isinstance(seed, bool):
        raise DataError(
            f"prompt {replica.task.prompt.prompt_id}: its field `seed` is {seed!r}; an episode needs a whole number"
        )
    return seed
