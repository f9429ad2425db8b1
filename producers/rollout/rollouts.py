"""The half of a rollout that takes a slot of the engine: render the prompt, generate.

What comes of it is a response to be scored (`producers.rollout.scoring`), or a sample at once where there is none.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Protocol

from producers.engines.ports import GenerationRequest
from producers.engines.stop_texts import StopTexts
from producers.rollout.actions import failed
from producers.rollout.outcomes import unfinished_sample
from producers.rollout.scoring import Response
from rollog.kernel.errors import DataError, EngineDied, EngineError
from schemas import Timings

if TYPE_CHECKING:
    from producers.rollout.engine_calls import EngineCalls
    from producers.rollout.outcomes import Replica
    from producers.rollout.prompts import PromptRenderer
    from producers.rollout.resumption import ResumableResponse
    from schemas import Sample


class RolloutMaker(Protocol):
    """Makes what is to be scored: one response, or a whole episode."""

    async def generate(self, replica: Replica) -> Response | Sample:
        """What a replica comes to, or the sample that says why there is nothing. Raises EngineDied."""
        ...

    async def interrupt(self, request_id: str) -> None:
        """Make the matching `generate` end early, as the session says."""
        ...


class ResponseMaker:
    """One response to one prompt."""

    def __init__(self, worker_id: str, calls: EngineCalls, renderer: PromptRenderer) -> None:
        self._worker_id = worker_id
        self._calls = calls
        self._renderer = renderer

    async def generate(self, replica: Replica) -> Response | Sample:
        """One response, or the sample that says why there is none. Raises EngineDied, which ends the worker."""
        began_at = time.monotonic()
        response: ResumableResponse | None = None
        seconds = 0.0
        try:
            prompt_token_ids = self._renderer.token_ids(replica.task)
            ending = self._calls.ending_of(replica)
            if ending is None:
                response = self._calls.response_to(self._request(replica, prompt_token_ids))
                await self._calls.generate(replica, response)
                seconds = time.monotonic() - began_at
                ending = self._calls.ending_after(replica, response.generation)
            if response is not None and ending is None:
                return self._scorable(replica, prompt_token_ids, response, seconds)
        except EngineDied:
            raise
        except (DataError, EngineError) as error:
            ending = self._calls.ending_of(replica) or failed(type(error).__name__, str(error))
        assert ending is not None
        return unfinished_sample(
            replica,
            self._worker_id,
            ending,
            timings=Timings(generation_seconds=seconds),
            wasted_tokens=0 if response is None else response.num_tokens,
        )

    async def interrupt(self, request_id: str) -> None:
        """Make the matching `generate` end early, as the session says."""
        await self._calls.interrupt(request_id)

    def _request(self, replica: Replica, prompt_token_ids: tuple[int, ...]) -> GenerationRequest:
        sampling = replica.task.sampling
        return GenerationRequest(
            request_id=replica.request_id,
            prompt_token_ids=prompt_token_ids,
            sampling=sampling,
            seed=replica.seed,
            stop=StopTexts(sampling.stop, self._renderer.raw_text) if sampling.stop else None,
        )

    def _scorable(
        self, replica: Replica, prompt: tuple[int, ...], response: ResumableResponse, seconds: float
    ) -> Response:
        generation = response.generation
        return Response.of_one_turn(
            replica,
            generation,
            prompt_token_ids=prompt,
            text=self._renderer.text(generation.token_ids.tolist()),
            generation_seconds=seconds,
        )
