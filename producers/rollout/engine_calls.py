"""Responses of the engine for running rollouts: each may be suspended, resumed and interrupted from outside.

A rollout of several turns makes calls one after another, or several at once. A suspended call returns what it has,
and is asked for the rest when the engine serves again. While weights are being loaded, and after a
load that failed, new calls are held: an engine without weights would refuse them.

    hold ──> calls in the engine stay there, paused by the engine; new ones wait here ──go_on──> all go on
    hold ──> calls in the engine come to their end ──drained──> it has none; new ones wait here ──go_on──> these go in
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from producers.rollout.actions import failed
from producers.rollout.resumption import ResumableResponse
from schemas import FinishReason

if TYPE_CHECKING:
    from collections.abc import Callable

    from producers.engines.ports import Engine, Generation, GenerationRequest
    from producers.rollout.actions import Ending
    from producers.rollout.outcomes import Replica
    from producers.rollout.session import WorkerSession


@dataclass(eq=False)
class _InFlight:
    """A response in the making: in the engine as `request_id`, or suspended until `may_go_on`."""

    request_id: str
    is_suspended: bool = False
    is_interrupted: bool = False
    may_go_on: asyncio.Event = field(default_factory=asyncio.Event)


class EngineCalls:
    """Generates with one engine. `on_resumed` is called for every call that is handed to the engine again."""

    def __init__(self, session: WorkerSession, engine: Engine, *, on_resumed: Callable[[], None]) -> None:
        self._session = session
        self._engine = engine
        self._in_flight: dict[str, list[_InFlight]] = {}
        self._on_resumed = on_resumed
        self._is_held = False
        self._num_in_engine = 0
        self._is_drained = asyncio.Event()
        self._is_drained.set()

    @property
    def max_context_tokens(self) -> int:
        """Longest prompt plus response that the engine takes."""
        return self._engine.max_context_tokens

    def response_to(self, request: GenerationRequest) -> ResumableResponse:
        """A response of which nothing is generated yet."""
        return ResumableResponse(request, max_context_tokens=self._engine.max_context_tokens)

    async def generate(self, replica: Replica, response: ResumableResponse) -> None:
        """Generate `response` to its end, or to the end that the session has set. Raises EngineError, EngineDied."""
        in_flight = _InFlight(replica.request_id)
        self._in_flight.setdefault(replica.request_id, []).append(in_flight)
        try:
            if self._is_held and not await self._may_go_on(replica, in_flight):
                return
            while await self._generate_part(in_flight, response):
                if not await self._may_go_on(replica, in_flight):
                    return
                in_flight.is_suspended = False
                self._on_resumed()
        finally:
            self._leave(replica.request_id, in_flight)

    def digest_of(self, version: int) -> str:
        """What segments carry of a version."""
        return self._session.digest_of(version)

    def ending_of(self, replica: Replica) -> Ending | None:
        """Why a rollout shall not finish, or None."""
        return self._session.ending_of(replica.task.task_id)

    def ending_after(self, replica: Replica, generation: Generation) -> Ending | None:
        """The same, of one whose response may also have been cut off by the engine itself."""
        ending = self.ending_of(replica)
        if ending is None and generation.finish_reason is FinishReason.ABORT:
            return failed("EngineError", "the engine aborted the request on its own")
        return ending

    async def interrupt(self, request_id: str) -> None:
        """Make the calls of a rollout end early; one that has none is left alone."""
        for in_flight in list(self._in_flight.get(request_id, ())):
            in_flight.is_interrupted = True
            in_flight.may_go_on.set()
            await self._engine.abort(in_flight.request_id)

    async def suspend(self, request_id: str) -> None:
        """Take the calls of a rollout out of the engine, with the tokens they have, until `go_on`."""
        for in_flight in list(self._in_flight.get(request_id, ())):
            in_flight.is_suspended = True
            in_flight.may_go_on.clear()
            await self._engine.abort(in_flight.request_id)

    def hold(self) -> None:
        """Keep new calls from the engine until `go_on`."""
        self._is_held = True

    async def drained(self) -> None:
        """Wait until the engine has no call; to be asked for after `hold`."""
        await self._is_drained.wait()

    def go_on(self) -> None:
        """Hand every suspended and every held call to the engine, which serves a version."""
        self._is_held = False
        for each in self._in_flight.values():
            for in_flight in each:
                in_flight.may_go_on.set()

    def _leave(self, request_id: str, in_flight: _InFlight) -> None:
        left = self._in_flight[request_id]
        left.remove(in_flight)
        if not left:
            del self._in_flight[request_id]

    async def _may_go_on(self, replica: Replica, in_flight: _InFlight) -> bool:
        """Wait for `go_on`, or for an interruption: then false."""
        while not in_flight.may_go_on.is_set():
            await in_flight.may_go_on.wait()
        return not in_flight.is_interrupted and self.ending_of(replica) is None

    async def _generate_part(self, in_flight: _InFlight, response: ResumableResponse) -> bool:
        """Whether the part was cut off by a suspension, and more is to come."""
        request = response.next_request()
        in_flight.request_id = request.request_id
        self._num_in_engine += 1
        self._is_drained.clear()
        try:
            response.add(await self._engine.generate(request))
        finally:
            self._num_in_engine -= 1
            if not self._num_in_engine:
                self._is_drained.set()
        return in_flight.is_suspended and not response.is_complete
