"""The half of a rollout that takes a slot of the engine: render the prompt, generate.

What comes of it is a response to be scored (`producers.rollout.scoring`), or a sample at once where there is none.
Generation may be suspended: the engine returns what it has made, and is asked for the rest when it serves again.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from producers.engines.ports import GenerationRequest
from producers.engines.stop_texts import StopTexts
from producers.rollout.actions import Ending, failed
from producers.rollout.outcomes import Replica, unfinished_sample
from producers.rollout.resumption import ResumableResponse
from producers.rollout.scoring import Response
from rollog.kernel.errors import DataError, EngineDied, EngineError
from schemas import FinishReason, Timings

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from producers.engines.ports import Engine, Generation
    from producers.rollout.prompts import PromptRenderer
    from producers.rollout.session import WorkerSession
    from schemas import Sample


@dataclass(eq=False)
class _InFlight:
    """A response in the making: in the engine as `request_id`, or suspended until `may_go_on`."""

    request_id: str
    is_suspended: bool = False
    may_go_on: asyncio.Event = field(default_factory=asyncio.Event)


class RolloutMaker:
    """Generates with one engine. `on_resumed` is called for every rollout that is handed to the engine again."""

    def __init__(
        self,
        session: WorkerSession,
        engine: Engine,
        renderer: PromptRenderer,
        *,
        on_resumed: Callable[[], None],
    ) -> None:
        self._session = session
        self._engine = engine
        self._renderer = renderer
        self._in_flight: dict[str, _InFlight] = {}
        self._on_resumed = on_resumed

    async def generate(self, replica: Replica) -> Response | Sample:
        """One response, or the sample that says why there is none. Raises EngineDied, which ends the worker."""
        began_at = time.monotonic()
        response: ResumableResponse | None = None
        try:
            prompt_token_ids = self._renderer.token_ids(replica.task)
            if (ending := self._ending(replica)) is not None:
                return self._unfinished(replica, ending)
            response = self._response(replica, prompt_token_ids)
            await self._generate(replica, response)
            seconds = time.monotonic() - began_at
            generation = response.generation
            if (ending := self._ending_after(replica, generation)) is not None:
                return self._unfinished(replica, ending, seconds, response)
            response_text = self._renderer.text(generation.token_ids.tolist())
        except EngineDied:
            raise
        except (DataError, EngineError) as error:
            ending = self._ending(replica) or failed(type(error).__name__, str(error))
            return self._unfinished(replica, ending, response=response)
        return Response(
            replica=replica,
            generation=generation,
            prompt_token_ids=prompt_token_ids,
            text=response_text,
            generation_seconds=seconds,
        )

    async def interrupt(self, request_id: str) -> None:
        """Make the matching `generate` end early, as the session says."""
        in_flight = self._in_flight.get(request_id)
        if in_flight is not None:
            in_flight.may_go_on.set()
            await self._engine.abort(in_flight.request_id)

    async def suspend(self, request_id: str) -> None:
        """Take a rollout out of the engine, with the tokens it has, until `go_on`."""
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
        sampling = replica.task.sampling
        request = GenerationRequest(
            request_id=replica.request_id,
            prompt_token_ids=prompt_token_ids,
            sampling=sampling,
            seed=replica.seed,
            stop=StopTexts(sampling.stop, self._renderer.raw_text) if sampling.stop else None,
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
        seconds: float = 0.0,
        response: ResumableResponse | None = None,
    ) -> Sample:
        return unfinished_sample(
            replica,
            self._session.worker_id,
            ending,
            timings=Timings(generation_seconds=seconds),
            wasted_tokens=0 if response is None else response.num_tokens,
        )
