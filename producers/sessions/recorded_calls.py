"""The calls of one session on the worker's side: asked with token ids, recorded before there is an answer.

    ask --> joined to the same call, or begun --generate--> recorded --> answer --> deliver

The same request joins the call that is under way for it, or whose answer was not written whole, or which a client's
own retry names. Whoever asks may be gone and come again, in another process too: `history` has what was recorded.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from producers.sessions.errors import (
    CallRefused,
    CallsInFlight,
    Leaving,
    Overlong,
    SessionClosed,
    SessionFailed,
)
from producers.sessions.recording import Counted
from schemas import FinishReason, int32_array

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from producers.engines.ports import Generation
    from producers.sessions.budgets import Call
    from producers.sessions.recorder import Session
    from schemas import Int32Array

_most_kept_bytes = 16 << 20
"""Of one session: ids and notes of answered calls; the oldest go first."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Question:
    """One call: the ids for the engine, and what is noted with its turn.

    `digest` is equal for the same request. `said` is the asker's own note, which it gets back from `history`.
    """

    digest: str
    input_ids: Int32Array
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    is_retry: bool = False
    reason: str | None = None
    is_constrained: bool = False
    counted: tuple[Counted, ...] = ()
    said: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RecordedCall:
    """A recorded turn with the input that it followed; `created` is in seconds since 1970."""

    number: int
    input_ids: Int32Array
    turn_ids: Int32Array
    finish_reason: FinishReason
    created: int
    said: bytes = b""


class SessionCalls(Protocol):
    """What serves the requests of a session, as whoever reads them knows it."""

    async def ask(self, question: Question) -> RecordedCall:
        """The recorded turn. Raises CallRefused (every kind of it) and SessionFailed."""
        ...

    def deliver(self, number: int) -> None:
        """The answer with that turn was written whole."""
        ...

    def refuse(self, kind: Counted) -> None:
        """Count a request that became no question: `REFUSED`, or `OVERLONG`."""
        ...

    def count(self, kinds: Sequence[Counted]) -> None:
        """Count what an answer showed of a recorded call."""
        ...


class Generate(Protocol):
    """Where the tokens of a session come from. The run decides how they are drawn."""

    async def __call__(self, input_ids: Sequence[int], max_tokens: int, stop: Sequence[str]) -> Generation:
        """At most `max_tokens` tokens after `input_ids`, ended by a text of `stop` too.

        Raises EngineError, SessionFailed, or Leaving where the worker takes no call.
        """
        ...


class RecordedCalls:
    """`SessionCalls` of one session, which it ends. For one asyncio loop."""

    def __init__(
        self,
        name: str,
        session: Session,
        generate: Generate,
        *,
        parallel_calls: int,
        on_change: Callable[[int], None] = lambda _: None,
    ) -> None:
        """`on_change` is told how many calls are under way, when one begins, ends or is refused."""
        self._name = name
        self._session = session
        self._generate = generate
        self._most = parallel_calls
        self._on_change = on_change
        self._running: dict[asyncio.Task[RecordedCall], str] = {}
        """With the digest of their questions."""
        self._answered: dict[str, int] = {}
        """Number of the newest turn by the digest of its question."""
        self._history: dict[int, RecordedCall] = {}
        self._kept_bytes = 0
        self._is_ending = False
        self._is_closed = False

    @property
    def history(self) -> list[RecordedCall]:
        """The recorded calls that are still kept, by number."""
        return [call for _, call in sorted(self._history.items())]

    async def ask(self, question: Question) -> RecordedCall:
        """The recorded turn. Raises CallRefused (every kind of it) and SessionFailed.

        Who no longer waits for it does not end it.
        """
        if self._is_ending:
            raise SessionClosed("the session has ended and takes no further call")
        if self._session.failure is not None:
            raise self._session.failure
        task = self._under_way(question)
        recorded = self._recorded(question) if task is None else None
        if task is not None or recorded is not None:
            self._session.count([Counted.REJOINED])
        if recorded is not None:
            return recorded
        task = task or self._begun(question)
        await asyncio.wait([task])
        if task.cancelled():
            raise SessionClosed("the session ended while the call was under way")
        return task.result()

    def deliver(self, number: int) -> None:
        """The answer was written whole. Nothing of an ended session changes."""
        if not self._is_closed:
            self._session.deliver(number)

    def refuse(self, kind: Counted) -> None:
        """Count a request that became no question."""
        if self._is_closed:
            return
        if kind is Counted.OVERLONG:
            self._session.note_overlong()
        self._session.count([kind])
        self._on_change(len(self._running))

    def count(self, kinds: Sequence[Counted]) -> None:
        """Count what an answer showed of a recorded call."""
        if not self._is_closed:
            self._session.count(kinds)

    async def cancel(self) -> None:
        """Take no further call and cancel those under way. Idempotent."""
        self._is_ending = True
        running = list(self._running)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    def stir(self) -> None:
        """Tell again how many calls are under way."""
        self._on_change(len(self._running))

    def close(self) -> None:
        """Change nothing of the session any more, whatever is said of it. Idempotent."""
        self._is_closed = True

    def _recorded(self, question: Question) -> RecordedCall | None:
        """The call whose answer the question asks for again."""
        call = self._history.get(self._answered.get(question.digest, -1))
        if call is None or not (question.is_retry or not self._session.is_delivered(call.number)):
            return None
        return replace(call, said=b"")

    def _under_way(self, question: Question) -> asyncio.Task[RecordedCall] | None:
        """The call under way for the same question."""
        return next((task for task, digest in self._running.items() if digest == question.digest), None)

    def _begun(self, question: Question) -> asyncio.Task[RecordedCall]:
        try:
            return self._begin(question)
        except Overlong:
            self._session.count([Counted.OVERLONG])
            raise
        finally:
            self._on_change(len(self._running))

    def _begin(self, question: Question) -> asyncio.Task[RecordedCall]:
        if len(self._running) >= self._most:
            raise CallsInFlight(
                f"{len(self._running)} calls of this session are under way, as many as it may have; "
                "ask again when one has ended"
            )
        call = self._session.ask(len(question.input_ids), question.max_tokens)
        task = asyncio.create_task(self._answer(question, call), name=f"call of {self._name}")
        self._running[task] = question.digest
        task.add_done_callback(self._ended_call)
        return task

    def _ended_call(self, task: asyncio.Task[RecordedCall]) -> None:
        del self._running[task]
        if not task.cancelled():
            # Whoever asked may be gone, so that nobody else looks at the error.
            task.exception()
        self._on_change(len(self._running))

    async def _answer(self, question: Question, call: Call) -> RecordedCall:
        """Generate, and record. Raises Leaving, SessionFailed."""
        input_ids = question.input_ids.tolist()
        try:
            turn = await self._generate(input_ids, call.max_tokens, question.stop)
        except SessionFailed as error:
            self._session.abandon(call)
            self._session.fail(error)
            raise
        except CallRefused:
            self._session.abandon(call)
            raise
        except Exception as error:
            self._session.abandon(call)
            self._session.fail(failure := SessionFailed(type(error).__name__, str(error)))
            raise failure from error
        except BaseException:
            self._session.abandon(call)
            raise
        if turn.finish_reason is FinishReason.ABORT:
            self._session.abandon(call, len(turn.token_ids))
            raise Leaving("the call was taken out of the engine; ask again")
        number = self._session.record(
            input_ids,
            turn,
            call=call,
            reason=question.reason,
            is_constrained=question.is_constrained,
            is_delivered=False,
        )
        self._session.count(question.counted)
        recorded = RecordedCall(
            number=number,
            input_ids=question.input_ids,
            turn_ids=int32_array(turn.token_ids),
            finish_reason=turn.finish_reason,
            created=int(time.time()),
            said=question.said,
        )
        self._keep(question.digest, recorded)
        return replace(recorded, said=b"")

    def _keep(self, digest: str, call: RecordedCall) -> None:
        """Have the call in the history, as long as there is room."""
        self._answered[digest] = call.number
        self._history[call.number] = call
        self._kept_bytes += _size(call)
        while self._kept_bytes > _most_kept_bytes:
            self._kept_bytes -= _size(self._history.pop(min(self._history)))


def _size(call: RecordedCall) -> int:
    return call.input_ids.nbytes + call.turn_ids.nbytes + len(call.said)
