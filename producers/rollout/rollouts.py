"""One rollout from task to sample: render the prompt, generate, score. It always ends in a sample."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from producers.engines.ports import GenerationRequest
from producers.prompts import reward_fields, reward_prompt
from producers.rollout.actions import Ending, failed
from producers.rollout.outcomes import Replica, finished_sample, unfinished_sample
from rollog.errors import DataError, EngineDied, EngineError, RewardError
from schemas import FinishReason, Kind, Timings

if TYPE_CHECKING:
    from producers.engines.ports import Engine, Generation
    from producers.prompts import PromptRenderer
    from producers.reward_functions import RewardResult
    from producers.rewards import Rewards
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


class RolloutMaker:
    """Makes samples with one engine.

    `training_rewards` and `evaluation_rewards` differ in the negative control only.
    """

    def __init__(
        self,
        session: WorkerSession,
        engine: Engine,
        renderer: PromptRenderer,
        *,
        training_rewards: Rewards,
        evaluation_rewards: Rewards,
    ) -> None:
        self._session = session
        self._engine = engine
        self._renderer = renderer
        self._rewards = {Kind.TRAINING: training_rewards, Kind.EVALUATION: evaluation_rewards}
        self._scoring: dict[str, asyncio.Future[RewardResult]] = {}

    async def make(self, replica: Replica) -> Sample:
        """Make one sample. Raises EngineDied, which ends the worker."""
        stopwatch = _Stopwatch()
        generation: Generation | None = None
        try:
            prompt_token_ids = self._renderer.token_ids(replica.task)
            if (ending := self._ending(replica)) is not None:
                return self._unfinished(replica, ending, stopwatch)
            generation = await self._engine.generate(
                GenerationRequest(
                    request_id=replica.request_id,
                    prompt_token_ids=prompt_token_ids,
                    sampling=replica.task.sampling,
                    seed=replica.seed,
                )
            )
            stopwatch.generation_seconds = stopwatch.lap()
            if (ending := self._ending_after(replica, generation)) is not None:
                return self._unfinished(replica, ending, stopwatch, generation)
            response_text = self._renderer.text(generation.token_ids.tolist())
            reward = await self._score(replica, response_text)
            stopwatch.reward_seconds = stopwatch.lap()
        except EngineDied:
            raise
        except (DataError, EngineError, RewardError) as error:
            ending = self._ending(replica) or failed(type(error).__name__, str(error))
            return self._unfinished(replica, ending, stopwatch, generation)
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
        await self._engine.abort(request_id)

    async def _score(self, replica: Replica, response_text: str) -> RewardResult:
        task = replica.task
        prompt, fields = reward_prompt(task.prompt), reward_fields(task.prompt)
        scoring = asyncio.ensure_future(self._rewards[task.kind].score(prompt, response_text, fields))
        self._scoring[replica.request_id] = scoring
        try:
            return await scoring
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
        self, replica: Replica, ending: Ending, stopwatch: _Stopwatch, generation: Generation | None = None
    ) -> Sample:
        return unfinished_sample(
            replica,
            self._session.worker_id,
            ending,
            timings=stopwatch.timings,
            wasted_tokens=0 if generation is None else len(generation.token_ids),
        )
