"""One rollout from task to sample: render the prompt, generate, score. It always ends in a sample.

Generation may be suspended: the engine returns what it has made, and is asked for the rest when it serves again.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from producers.engines.ports import GenerationRequest
from producers.rollout.actions import Ending, failed
from producers.rollout.outcomes import Replica, finished_sample, unfinished_sample
from producers.rollout.prompts import reward_fields, reward_prompt
from producers.rollout.resumption import ResumableResponse
from rollog.kernel.errors import DataError, EngineDied, EngineError, RewardError
from schemas import FinishReason, Kind, Timings

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from producers.engines.ports import Engine, Generation
    from producers.rewards.functions import RewardResult
    from producers.rewards.ports import Rewards
    from producers.rollout.prompts import PromptRenderer
    from producers.rollout.session import WorkerSession
    from schemas import Sample


class _Stopwatch:
    """Seconds spent in the phases of one rollout."""

    def __init__(self) -> None:
        self._lap = time.monotonic()
        self.generation_seconds = 0.0
        self.reward_seconds = 0.0

    def lap(self) -> float:
        """Seconds since the lap before."""
        now = time.monotonic()
        seconds, self._lap = now - self._lap, now
        return seconds

    @property
    def timings(self) -> Timings:
        """As the sample holds them."""
        return Timings(generation_seconds=self.generation_seconds, reward_seconds=self.reward_seconds)


@dataclass(eq=False)
class _InFlight:
    """A response in the making: in the engine as `request_id`, or suspended until `may_go_on`."""

    request_id: str
    is_suspended: bool = False
    may_go_on: asyncio.Event = field(default_factory=asyncio.Event)


class RolloutMaker:
    """Makes samples with one engine.

    `training_rewards` and `evaluation_rewards` differ in the negative control only. `on_resumed` is called for
    every rollout that is handed to the engine again.
    """

    def __init__(
        self,
        session: WorkerSession,
        engine: Engine,
        renderer: PromptRenderer,
        *,
        training_rewards: Rewards,
        evaluation_rewards: Rewards,
        on_resumed: Callable[[], None],
    ) -> None:
        self._session = session
        self._engine = engine
        self._renderer = renderer
        self._rewards = {Kind.TRAINING: training_rewards, Kind.EVALUATION: evaluation_rewards}
        self._scoring: dict[str, asyncio.Future[RewardResult]] = {}
        self._in_flight: dict[str, _InFlight] = {}
        self._on_resumed = on_resumed

    async def make(self, replica: Replica) -> Sample:
        """Make one sample. Raises EngineDied, which ends the worker."""
        stopwatch = _Stopwatch()
        response: ResumableResponse | None = None
        try:
            prompt_token_ids = self._renderer.token_ids(replica.task)
            if (ending := self._ending(replica)) is not None:
                return self._unfinished(replica, ending, stopwatch)
            response = self._response(replica, prompt_token_ids)
            await self._generate(replica, response)
            stopwatch.generation_seconds = stopwatch.lap()
            generation = response.generation
            if (ending := self._ending_after(replica, generation)) is not None:
                return self._unfinished(replica, ending, stopwatch, response)
            response_text = self._renderer.text(generation.token_ids.tolist())
            reward = await self._score(replica, response_text, len(generation.token_ids))
            stopwatch.reward_seconds = stopwatch.lap()
        except EngineDied:
            raise
        except (DataError, EngineError, RewardError) as error:
            ending = self._ending(replica) or failed(type(error).__name__, str(error))
            return self._unfinished(replica, ending, stopwatch, response)
        return finished_sample(
            replica,
            self._session.worker_id,
            generation,
            prompt_token_ids=prompt_token_ids,
            response_text=response_text,
            reward=reward,
            digest_of=self._session.digest_of,
            timings=stopwatch.timings,
        )

    async def interrupt(self, request_id: str) -> None:
        """Make the matching `make` end early, as the session says."""
        scoring = self._scoring.get(request_id)
        if scoring is not None:
            scoring.cancel()
        in_flight = self._in_flight.get(request_id)
        if in_flight is not None:
            in_flight.may_go_on.set()
            await self._engine.abort(in_flight.request_id)

    async def suspend(self, request_id: str) -> None:
        """Take a rollout out of the engine, with the tokens it has, until `go_on`; one that is scored stays."""
        in_flight = self._in_flight.get(request_id)
        if in_flight is not None:
            in_flight.is_suspended = True
            in_flight.may_go_on.clear()
            await self._engine.abort(in_flight.request_id)

    def go_on(self) -> None:
        """Hand every suspended rollout to the engine again, which serves a version."""
        for in_flight in self._in_flight.values():
            in_flight.may_go_on.set()

    def _response(self, replica: Replica, prompt_token_ids: Sequence[int]) -> ResumableResponse:
        request = GenerationRequest(
            request_id=replica.request_id,
            prompt_token_ids=prompt_token_ids,
            sampling=replica.task.sampling,
            seed=replica.seed,
        )
        return ResumableResponse(request, max_context_tokens=self._engine.max_context_tokens)

    async def _generate(self, replica: Replica, response: ResumableResponse) -> None:
        """Generate `response` to its end, or to the end that the session has set. Raises EngineError."""
        in_flight = self._in_flight[replica.request_id] = _InFlight(replica.request_id)
        try:
            while await self._generate_part(in_flight, response):
                while not in_flight.may_go_on.is_set():
                    await in_flight.may_go_on.wait()
                if self._ending(replica) is not None:
                    return
                in_flight.is_suspended = False
                self._on_resumed()
        finally:
            del self._in_flight[replica.request_id]

    async def _generate_part(self, in_flight: _InFlight, response: ResumableResponse) -> bool:
        """Whether the part was cut off by a suspension, and more is to come."""
        request = response.next_request()
        in_flight.request_id = request.request_id
        response.add(await self._engine.generate(request))
        return in_flight.is_suspended and not response.is_complete

    async def _score(self, replica: Replica, response_text: str, num_tokens: int) -> RewardResult:
        task = replica.task
        prompt, fields = reward_prompt(task.prompt), reward_fields(task.prompt)
        scoring = asyncio.ensure_future(self._rewards[task.kind].score(prompt, response_text, fields))
        self._scoring[replica.request_id] = scoring
        try:
            return _checked(await scoring, num_turns=1 if num_tokens else 0)
        except asyncio.CancelledError:
            if self._ending(replica) is None or not scoring.cancelled():
                raise
            raise RewardError("the rollout was interrupted while it was scored") from None
        finally:
            del self._scoring[replica.request_id]

    def _ending(self, replica: Replica) -> Ending | None:
        return self._session.ending_of(replica.task.task_id)

    def _ending_after(self, replica: Replica, generation: Generation) -> Ending | None:
        ending = self._ending(replica)
        if ending is None and generation.finish_reason is FinishReason.ABORT:
            return failed("EngineError", "the engine aborted the request on its own")
        return ending

    def _unfinished(
        self,
        replica: Replica,
        ending: Ending,
        stopwatch: _Stopwatch,
        response: ResumableResponse | None = None,
    ) -> Sample:
        return unfinished_sample(
            replica,
            self._session.worker_id,
            ending,
            timings=stopwatch.timings,
            wasted_tokens=0 if response is None else response.num_tokens,
        )


def _checked(reward: RewardResult, num_turns: int) -> RewardResult:
    """The reward, whose turns are those of the response. Raises RewardError."""
    if reward.turn_rewards and len(reward.turn_rewards) != num_turns:
        raise RewardError(
            f"the reward function returned {len(reward.turn_rewards)} turn_rewards for a response of {num_turns} "
            "turn(s); give one for each, or none"
        )
    return reward
