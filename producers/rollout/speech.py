"""How policy and environment speak to each other: which ids the engine is given for what the environment said.

An episode has one speech. `opening` gives the first input, each `reply` the next one: it begins with the ids before it
and those of the turn, which are never tokenised again. Text of the environment becomes no special token.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, Protocol

from producers.sessions.chat_template import TokenizerTemplate
from producers.sessions.errors import BadRequest
from producers.sessions.rendering import Conversation, ConversationRenderer, SaidCall
from producers.sessions.text_tokens import TextTokens
from rollog.kernel.errors import ConfigError, EnvironmentFailed

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

SpeechFormat = Literal["auto", "chat", "text"]


class Speech(Protocol):
    """Of one episode."""

    def opening(self, text: str) -> list[int]:
        """The first input. Raises EnvironmentFailed where it has no token."""
        ...

    def reply(self, input_ids: Sequence[int], turn_ids: Sequence[int], said: str, text: str) -> list[int]:
        """The input behind a turn in which the policy said `said`, and the environment answered `text`.

        Raises EnvironmentFailed where the answer has no token.
        """
        ...


class TextSpeech:
    """Plain text, tokenised alone and put behind what is there."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._tokens = TextTokens(tokenizer)

    def opening(self, text: str) -> list[int]:
        """The tokenizer's own first tokens, and the text."""
        plain = list(self._tokenizer.encode(text, add_special_tokens=False, split_special_tokens=True))
        marked = list(self._tokenizer.encode(text, add_special_tokens=True, split_special_tokens=True))
        starts = range(len(marked) - len(plain) + 1)
        first = next((start for start in starts if marked[start : start + len(plain)] == plain), 0)
        return [*marked[:first], *self._ids(text)]

    def reply(self, input_ids: Sequence[int], turn_ids: Sequence[int], said: str, text: str) -> list[int]:
        """What is there, and the text."""
        del said
        return [*input_ids, *turn_ids, *self._ids(text)]

    def _ids(self, text: str) -> list[int]:
        ids = self._tokens.plain_ids(text)
        if not ids:
            raise EnvironmentFailed(
                f"the environment's text {text!r} has no token, so that two turns would follow each other; let it say "
                "something"
            )
        return ids


class ChatSpeech:
    """Chat messages: the environment is the user, the policy the assistant, both in the model's own template."""

    def __init__(self, renderer: ConversationRenderer, system_prompt: str | None) -> None:
        self._renderer = renderer
        self._system = [] if system_prompt is None else [{"role": "system", "content": system_prompt}]
        self._conversation = Conversation(messages=self._system)

    def opening(self, text: str) -> list[int]:
        """System message and first message, with the template's call to answer."""
        self._conversation = Conversation(messages=[*self._system, {"role": "user", "content": text}])
        return self._rendered([])

    def reply(self, input_ids: Sequence[int], turn_ids: Sequence[int], said: str, text: str) -> list[int]:
        """The ids so far, what the template puts behind an answer, and the next message."""
        answer = {"role": "assistant", "content": said}
        call = SaidCall(
            conversation=self._conversation, input_ids=input_ids, turn_ids=turn_ids, answer=answer
        )
        new = [answer, {"role": "user", "content": text}]
        self._conversation = Conversation(messages=[*self._conversation.messages, *new])
        return self._rendered([call])

    def _rendered(self, said: Sequence[SaidCall]) -> list[int]:
        try:
            rendered = self._renderer.render(self._conversation, said)
        except BadRequest as error:
            raise EnvironmentFailed(
                f"the chat template refuses what the environment said: {error}"
            ) from error
        if rendered.reason is not None:
            raise EnvironmentFailed(_does_not_append)
        return list(rendered.input_ids)


_does_not_append = (
    "the model's chat template does not append a user's message behind an answer (it rewrites what stands before): set "
    'environment.format = "text", or model.tokenizer to one with a template that appends'
)


def speech_of(
    tokenizer: Any,
    speech_format: SpeechFormat,
    *,
    system_prompt: str | None,
    chat_template_kwargs: Mapping[str, Any],
) -> Callable[[], Speech]:
    """What begins a speech; `auto` is chat where the tokenizer has a template.

    Raises ConfigError for chat without a template, and with one that does not append.
    """
    has_template = bool(getattr(tokenizer, "chat_template", None))
    if speech_format == "text" or (speech_format == "auto" and not has_template):
        if system_prompt is not None:
            raise ConfigError(
                "environment.system_prompt needs chat messages, and the environment speaks plain text here: set "
                'environment.format = "chat" with a tokenizer that has a chat template, or leave the first out'
            )
        return lambda: TextSpeech(tokenizer)
    if not has_template:
        raise ConfigError(
            'environment.format = "chat", but the tokenizer has no chat template; set it to "text", or model.tokenizer'
        )
    template = TokenizerTemplate(tokenizer, defaults=chat_template_kwargs)
    renderer = ConversationRenderer(template, TextTokens(tokenizer))
    if not renderer.glue.self_test()["user"]:
        raise ConfigError(_does_not_append)
    return lambda: ChatSpeech(renderer, system_prompt)
