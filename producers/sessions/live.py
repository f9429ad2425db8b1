"""A session that is served: requests in, answers out, every turn recorded before its answer exists.

States: open (calls are taken) -> ended (no further call; those under way are cancelled). The same request joins the
call that is under way for it, or whose answer was not written whole, or which a client's own retry names.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from producers.sessions.conversations import canonical_message
from producers.sessions.errors import (
    BadRequest,
    CallsInFlight,
    Leaving,
    Overlong,
    SessionClosed,
    SessionFailed,
)
from producers.sessions.messages import ParsedTurn, assistant_message
from producers.sessions.recording import Counted
from producers.sessions.rendering import Rendered, SaidCall
from producers.sessions.responses import Answer
from rollog.kernel.errors import EngineError
from schemas import FinishReason

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from producers.engines.ports import Generation
    from producers.sessions.budgets import Call
    from producers.sessions.messages import TurnParser
    from producers.sessions.recorder import Session
    from producers.sessions.rendering import Conversation, ConversationRenderer
    from producers.sessions.requests import Request
    from producers.sessions.text_tokens import TextTokens


class PolicyCalls(Protocol):
    """Where tokens come from. The run decides how they are drawn."""

    async def generate(
        self, session: str, input_ids: Sequence[int], max_tokens: int, stop: Sequence[str]
    ) -> Generation:
        """At most `max_tokens` tokens after `input_ids`, ended by a text of `stop` too.

        Raises EngineError, SessionFailed, or Leaving where the worker takes no call.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """What all sessions of an endpoint share."""

    calls: PolicyCalls
    renderer: ConversationRenderer
    parser: TurnParser
    tokens: TextTokens
    model: str = "policy"
    parallel_calls: int = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class _SaidText:
    """A recorded text completion: prompt and all that was sampled, as text."""

    text: str
    input_ids: Sequence[int]
    turn_ids: Sequence[int]


@dataclass(frozen=True, slots=True)
class Asked:
    """A call under way, or its answer."""

    task: asyncio.Task[Answer]


class LiveSession:
    """Serves one session. Its methods are called from one asyncio loop."""

    def __init__(
        self, name: str, session: Session, policy: Policy, on_change: Callable[[int], None] = lambda _: None
    ) -> None:
        """`on_change` is told how many calls are under way, when a call begins, ends or is refused."""
        self.name = name
        self.session = session
        self._policy = policy
        self._on_change = on_change
        self._said: list[SaidCall] = []
        self._texts: list[_SaidText] = []
        self._asked: dict[str, Asked] = {}
        self._running: set[asyncio.Task[Answer]] = set()
        self._is_ended = False

    def ask(self, request: Request, *, is_retry: bool = False) -> Asked:
        """Begin a call, or join the one that the request repeats.

        Raises CallRefused (every kind of it) and SessionFailed.
        """
        if self._is_ended:
            raise SessionClosed("the session has ended and takes no further call")
        if self.session.failure is not None:
            raise self.session.failure
        before = self._asked.get(request.digest)
        if before is not None and self._is_joined(before, is_retry=is_retry):
            self.session.count([Counted.REJOINED])
            return before
        try:
            return self._begin(request)
        except (BadRequest, Overlong) as error:
            self.session.count([Counted.OVERLONG if isinstance(error, Overlong) else Counted.REFUSED])
            raise
        finally:
            self._on_change(len(self._running))

    def deliver(self, answer: Answer) -> None:
        """The answer was written whole."""
        self.session.deliver(answer.number)

    def refuse(self) -> None:
        """Count a request that is not served."""
        self.session.count([Counted.REFUSED])

    async def end(self) -> None:
        """Take no further call and cancel those under way. Idempotent."""
        self._is_ended = True
        running = list(self._running)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    def _is_joined(self, before: Asked, *, is_retry: bool) -> bool:
        if not before.task.done():
            return True
        if before.task.cancelled() or before.task.exception() is not None:
            return False
        return is_retry or not self.session.is_delivered(before.task.result().number)

    def _begin(self, request: Request) -> Asked:
        if len(self._running) >= self._policy.parallel_calls:
            raise CallsInFlight(
                f"{len(self._running)} calls of this session are under way, as many as it may have; "
                "ask again when one has ended"
            )
        rendered = self._rendered(request)
        call = self.session.ask(len(rendered.input_ids), request.max_tokens)
        task = asyncio.create_task(self._answer(request, rendered, call), name=f"call of {self.name}")
        asked = self._asked[request.digest] = Asked(task)
        self._running.add(task)
        task.add_done_callback(self._ended_call)
        return asked

    def _ended_call(self, task: asyncio.Task[Answer]) -> None:
        self._running.discard(task)
        if not task.cancelled():
            # Whoever asked may be gone, so that nobody else looks at the error.
            task.exception()
        self._on_change(len(self._running))

    def _rendered(self, request: Request) -> Rendered:
        if request.conversation is not None:
            return self._policy.renderer.render(request.conversation, self._said)
        return self._rendered_text(request.prompt)

    def _rendered_text(self, prompt: str | tuple[int, ...]) -> Rendered:
        """Ids as they are; a text that begins with a recorded one goes on from its ids."""
        if isinstance(prompt, tuple):
            return Rendered(input_ids=prompt)
        begun = [said for said in self._texts if prompt.startswith(said.text)]
        last = max(enumerate(begun), key=lambda each: (len(each[1].text), each[0]), default=None)
        if last is None:
            return Rendered(input_ids=self._policy.tokens.raw_ids(prompt))
        said = last[1]
        added = self._policy.tokens.added_ids(prompt.removeprefix(said.text))
        before = [*said.input_ids, *said.turn_ids]
        counted = self._policy.renderer.boundary(before, added)
        return Rendered(input_ids=[*before, *added], counted=counted)

    async def _answer(self, request: Request, rendered: Rendered, call: Call) -> Answer:
        """Generate, record, and only then make the answer. Raises Leaving, SessionFailed."""
        try:
            turn = await self._policy.calls.generate(
                self.name, rendered.input_ids, call.max_tokens, request.stop
            )
        except EngineError as error:
            self.session.abandon(call)
            self.session.fail(failure := SessionFailed(type(error).__name__, str(error)))
            raise failure from error
        except SessionFailed as error:
            self.session.abandon(call)
            self.session.fail(error)
            raise
        except BaseException:
            self.session.abandon(call)
            raise
        if turn.finish_reason is FinishReason.ABORT:
            self.session.abandon(call, len(turn.token_ids))
            raise Leaving("the call was taken out of the engine; ask again")
        number = self.session.record(
            rendered.input_ids,
            turn,
            call=call,
            reason=rendered.reason,
            is_constrained=request.is_constrained,
            is_delivered=False,
        )
        return self._handed_out(request, rendered, turn, number)

    def _handed_out(self, request: Request, rendered: Rendered, turn: Generation, number: int) -> Answer:
        turn_ids = turn.token_ids.tolist()
        parsed = self._parsed(request, rendered, turn_ids)
        content = _before_stop(parsed.content, request.stop)
        is_stopped = len(content) < len(parsed.content)
        said = ParsedTurn(content=content, reasoning=parsed.reasoning, tool_calls=parsed.tool_calls)
        message = assistant_message(said, rendered.input_ids, turn_ids)
        self._remember(request, rendered, turn_ids, parsed, canonical_message(message))
        self.session.count(
            [
                *rendered.counted,
                *([Counted.OVERRIDDEN] if request.is_overridden else []),
                *([Counted.STOP_STRING] if is_stopped else []),
            ]
        )
        return Answer(
            number=number,
            message=message,
            finish_reason="tool_calls" if parsed.tool_calls else turn.finish_reason.value,
            num_input_tokens=len(rendered.input_ids),
            num_tokens=len(turn_ids),
            is_chat=request.conversation is not None,
            model=self._policy.model,
        )

    def _parsed(self, request: Request, rendered: Rendered, turn_ids: Sequence[int]) -> ParsedTurn:
        if request.conversation is None:
            return ParsedTurn(content=self._policy.tokens.text(turn_ids))
        return self._policy.parser.parse(request.conversation, rendered.input_ids, turn_ids)

    def _remember(
        self,
        request: Request,
        rendered: Rendered,
        turn_ids: Sequence[int],
        parsed: ParsedTurn,
        answer: dict[str, object],
    ) -> None:
        ids = rendered.input_ids
        conversation: Conversation | None = rendered.conversation
        if conversation is not None:
            self._said.append(
                SaidCall(conversation=conversation, input_ids=ids, turn_ids=turn_ids, answer=answer)
            )
        elif isinstance(request.prompt, str):
            text = request.prompt + parsed.content
            self._texts.append(_SaidText(text=text, input_ids=ids, turn_ids=turn_ids))


def _before_stop(text: str, stop: Sequence[str]) -> str:
    """The text before the first stop text."""
    return text[: min((at for at in (text.find(each) for each in stop) if at >= 0), default=len(text))]
