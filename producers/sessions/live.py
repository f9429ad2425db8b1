"""A session that is served: requests in, answers out. What is recorded is kept elsewhere, behind `SessionCalls`.

    request --rendered--> ids --ask--> recorded turn --parsed--> answer

Rendering and parsing run on the endpoint's one thread for that, since what an agent sends can make them long.
What was said is a function of the recorded calls: after `recall` a new process serves a session as the old one did.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from producers.sessions.conversations import canonical_message
from producers.sessions.errors import BadRequest, Overlong
from producers.sessions.messages import ParsedTurn, assistant_message
from producers.sessions.recorded_calls import Question
from producers.sessions.recording import Counted
from producers.sessions.rendering import Rendered, SaidCall
from producers.sessions.responses import Answer
from producers.sessions.said import note_of, request_of
from rollog.kernel.logs import get_logger
from schemas import int32_array

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Sequence

    from producers.sessions.messages import TurnParser
    from producers.sessions.recorded_calls import RecordedCall, SessionCalls
    from producers.sessions.rendering import Conversation, ConversationRenderer
    from producers.sessions.rendering_thread import RenderingThread
    from producers.sessions.requests import Request
    from producers.sessions.text_tokens import TextTokens

Value = TypeVar("Value")

_log = get_logger("endpoint")


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """What all sessions of an endpoint share. The model's context takes `context_tokens`."""

    renderer: ConversationRenderer
    parser: TurnParser
    tokens: TextTokens
    vocabulary_size: int
    context_tokens: int
    model: str = "policy"

    @property
    def most_characters(self) -> int:
        """A request of more fits into no context."""
        return self.context_tokens * self.tokens.longest


@dataclass(frozen=True, slots=True, kw_only=True)
class _SaidText:
    """A recorded text completion: prompt and all that was sampled, as text."""

    number: int
    text: str
    input_ids: Sequence[int]
    turn_ids: Sequence[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Said:
    """What a recorded call comes to: its answer, and what later requests may go on from."""

    answer: Answer
    is_stopped: bool
    call: SaidCall | None = None
    text: _SaidText | None = None


class LiveSession:
    """Serves one session. Its methods are called from one asyncio loop, its work is done by the thread."""

    def __init__(self, name: str, calls: SessionCalls, policy: Policy, thread: RenderingThread) -> None:
        self.name = name
        self.under_way: set[asyncio.Task[object]] = set()
        """Requests that are served now."""
        self._calls = calls
        self._policy = policy
        self._thread = thread
        self._said: dict[int, _Said] = {}

    async def answer(self, request: Request, *, is_retry: bool = False) -> Answer:
        """The answer of a call that is begun, or of the one that the request repeats.

        Raises CallRefused (every kind of it) and SessionFailed.
        """
        try:
            self._check_length(request)
            rendered, note = await self._in_turn(partial(self._rendered, request, dict(self._said)))
        except (BadRequest, Overlong) as error:
            self._calls.refuse(Counted.OVERLONG if isinstance(error, Overlong) else Counted.REFUSED)
            raise
        recorded = await self._calls.ask(_question(request, rendered, note, is_retry=is_retry))
        said = await self._in_turn(partial(self._said_by, request, rendered.conversation, recorded))
        if self._remember(said) and said.is_stopped:
            self._calls.count([Counted.STOP_STRING])
        return said.answer

    def deliver(self, answer: Answer) -> None:
        """The answer was written whole."""
        self._calls.deliver(answer.number)

    def refuse(self) -> None:
        """Count a request that is not served."""
        self._calls.refuse(Counted.REFUSED)

    async def recall(self, recorded: Sequence[RecordedCall]) -> None:
        """Know again what was said in a process before. Nothing is counted anew."""
        for call in recorded:
            try:
                request = request_of(call.said)
                said = await self._in_turn(partial(self._said_by, request, request.conversation, call))
            except Exception as error:  # noqa: BLE001  # one call that cannot be read again must not end all sessions
                _log.warning("a call is not known again", session=self.name, error=type(error).__name__)
                continue
            self._remember(said)

    async def _in_turn(self, work: Callable[[], Value]) -> Value:
        return await self._thread.run(self.name, work)

    def _remember(self, said: _Said) -> bool:
        """Whether that was not known before."""
        is_new = said.answer.number not in self._said
        self._said.setdefault(said.answer.number, said)
        return is_new

    def _rendered(self, request: Request, known: dict[int, _Said]) -> tuple[Rendered, bytes]:
        """Ids for the engine, and the note from which the request is known again. Raises BadRequest, Overlong."""
        said = [known[number] for number in sorted(known)]
        if request.conversation is not None:
            calls = [each.call for each in said if each.call is not None]
            rendered = self._policy.renderer.render(request.conversation, calls)
        else:
            texts = [each.text for each in said if each.text is not None]
            rendered = self._rendered_text(request.prompt, texts)
        return rendered, note_of(request, rendered.conversation)

    def _check_length(self, request: Request) -> None:
        """To split a text into tokens takes longer than to count its characters."""
        most = self._policy.most_characters
        if request.num_characters > most:
            raise Overlong(
                f"the request has {request.num_characters} characters, and more than {most} fit into no context of "
                "this model; shorten the conversation"
            )

    def _rendered_text(self, prompt: str | tuple[int, ...], texts: Sequence[_SaidText]) -> Rendered:
        """Ids as they are; a text that begins with a recorded one goes on from its ids."""
        if isinstance(prompt, tuple):
            return Rendered(input_ids=prompt)
        begun = [said for said in texts if prompt.startswith(said.text)]
        last = max(begun, key=lambda said: (len(said.text), said.number), default=None)
        if last is None:
            return Rendered(input_ids=self._policy.tokens.raw_ids(prompt))
        added = self._policy.tokens.added_ids(prompt.removeprefix(last.text))
        before = [*last.input_ids, *last.turn_ids]
        counted = self._policy.renderer.boundary(before, added)
        return Rendered(input_ids=[*before, *added], counted=counted)

    def _said_by(self, request: Request, conversation: Conversation | None, recorded: RecordedCall) -> _Said:
        """What a recorded call says in answer to its request; a function of both."""
        input_ids, turn_ids = recorded.input_ids.tolist(), recorded.turn_ids.tolist()
        parsed = self._parsed(conversation, input_ids, turn_ids)
        content = _before_stop(parsed.content, request.stop)
        shown = ParsedTurn(content=content, reasoning=parsed.reasoning, tool_calls=parsed.tool_calls)
        message = assistant_message(shown, input_ids, turn_ids)
        answer = Answer(
            number=recorded.number,
            message=message,
            finish_reason="tool_calls" if parsed.tool_calls else recorded.finish_reason.value,
            num_input_tokens=len(input_ids),
            num_tokens=len(turn_ids),
            is_chat=conversation is not None,
            model=self._policy.model,
            created=recorded.created,
        )
        call, text = None, None
        if conversation is not None:
            call = SaidCall(
                conversation=conversation,
                input_ids=array("i", input_ids),
                turn_ids=array("i", turn_ids),
                answer=canonical_message(message),
            )
        elif isinstance(request.prompt, str):
            whole = request.prompt + parsed.content
            text = _SaidText(
                number=recorded.number,
                text=whole,
                input_ids=array("i", input_ids),
                turn_ids=array("i", turn_ids),
            )
        return _Said(answer=answer, is_stopped=len(content) < len(parsed.content), call=call, text=text)

    def _parsed(
        self, conversation: Conversation | None, input_ids: Sequence[int], turn_ids: Sequence[int]
    ) -> ParsedTurn:
        if conversation is None:
            return ParsedTurn(content=self._policy.tokens.text(turn_ids))
        return self._policy.parser.parse(conversation, input_ids, turn_ids)


def _question(request: Request, rendered: Rendered, note: bytes, *, is_retry: bool) -> Question:
    overridden = [Counted.OVERRIDDEN] if request.is_overridden else []
    return Question(
        digest=request.digest,
        input_ids=int32_array(rendered.input_ids),
        max_tokens=request.max_tokens,
        stop=request.stop,
        is_retry=is_retry,
        reason=rendered.reason,
        is_constrained=request.is_constrained,
        counted=(*rendered.counted, *overridden),
        said=note,
    )


def _before_stop(text: str, stop: Sequence[str]) -> str:
    """The text before the first stop text."""
    return text[: min((at for at in (text.find(each) for each in stop) if at >= 0), default=len(text))]
