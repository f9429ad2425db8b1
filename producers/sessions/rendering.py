"""Which input is sent for a chat request: recorded ids and what is new, or everything rendered.

Where tools and template arguments agree and the messages begin with those of a recorded call and its answer (the
deepest, then the newest): that call's ids, its turn's ids, and the template's glue with the new messages. Else the
whole conversation is rendered, and is context. What is recorded follows from the ids alone (`recorder.py`).

With history `keep` what was said stays, though the template would show less of it now (reasoning of earlier turns).
With `template` such a call is rendered anew, and forks.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

from producers.sessions.conversations import Message, echo_key, is_same_reasoning
from producers.sessions.errors import BadRequest
from producers.sessions.glue import GlueLearner, TemplateInputs
from producers.sessions.recording import Counted
from producers.sessions.text_tokens import TextTokens, answer_mark, open_mark

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from producers.sessions.chat_template import ChatTemplate

History = Literal["keep", "template"]


@dataclass(frozen=True, kw_only=True)
class Conversation:
    """A chat request in canonical form. `goes_on` lets the policy continue the last message, an assistant's."""

    messages: Sequence[Message]
    tools: Sequence[Mapping[str, Any]] = ()
    arguments: Mapping[str, Any] = field(default_factory=dict)
    goes_on: bool = False

    @cached_property
    def inputs(self) -> TemplateInputs:
        """What else than messages the template is given."""
        return TemplateInputs(self.tools, self.arguments)

    @cached_property
    def keys(self) -> tuple[str, ...]:
        """For each message what is compared."""
        return tuple(map(echo_key, self.messages))


@dataclass(frozen=True, kw_only=True)
class SaidCall:
    """A recorded call as the agent knows it: its conversation (reasoning restored), ids, and answer as handed out."""

    conversation: Conversation
    input_ids: Sequence[int]
    turn_ids: Sequence[int]
    answer: Message

    @cached_property
    def exchange(self) -> Conversation:
        """The conversation with its answer."""
        return replace(self.conversation, messages=[*self.conversation.messages, self.answer])


@dataclass(frozen=True, slots=True, kw_only=True)
class Rendered:
    """What is sent for a conversation. `reason` names the fork that comes of it, if one does."""

    input_ids: Sequence[int]
    conversation: Conversation | None = None
    counted: Sequence[Counted] = ()
    reason: str | None = None


class ConversationRenderer:
    """Renders conversations of any session with one template and tokenizer."""

    def __init__(self, template: ChatTemplate, tokens: TextTokens, *, history: History = "keep") -> None:
        self.glue = GlueLearner(template, tokens)
        self._tokens = tokens
        self._history = history

    def render(self, conversation: Conversation, said: Sequence[SaidCall]) -> Rendered:
        """The input for a conversation after the calls that are recorded. Raises BadRequest."""
        if conversation.goes_on and conversation.messages[-1]["role"] != "assistant":
            raise BadRequest("continue_final_message needs an assistant message at the end")
        known = [call for call in said if _begins_with(conversation, call.exchange)]
        conversation = _restored(conversation, known)
        same = [call for call in known if call.conversation.inputs.key == conversation.inputs.key]
        reason = _fork_reason(conversation, said, known)
        if same:
            last = max(enumerate(same), key=lambda each: (len(each[1].conversation.messages), each[0]))[1]
            if (appended := self._appended(conversation, last)) is not None:
                return appended
            reason = "template"
        return Rendered(
            input_ids=self._tokens.ids(self._whole_text(conversation)),
            conversation=conversation,
            counted=[Counted.FOREIGN] if _has_foreign(conversation, said) else [],
            reason=reason,
        )

    def _appended(self, conversation: Conversation, last: SaidCall) -> Rendered | None:
        """The recorded ids and what is new behind them; None where the template does not append it."""
        new = conversation.messages[len(last.conversation.messages) + 1 :]
        before = [*last.input_ids, *last.turn_ids]
        if conversation.goes_on and not new:
            return Rendered(
                input_ids=before, conversation=conversation, counted=self.boundary(before, []), reason=None
            )
        if self._history == "template" and not self._is_shown(conversation, last, new):
            return None
        hidden = self._tokens.hide(list(new))
        glue = self.glue.glue(
            last.answer, _open(hidden) if conversation.goes_on else hidden, conversation.inputs
        )
        if glue is None:
            return None
        text = glue.text.partition(open_mark)[0]
        ids, closing = self._tokens.ids(text), self._tokens.ids(glue.closing)
        overlap = _overlap(last.turn_ids, ids, len(closing))
        counted = [*self.boundary(before, ids[overlap:])]
        counted += [Counted.CLOSING] if overlap < len(closing) else []
        counted += [Counted.FOREIGN] if any(each["role"] == "assistant" for each in new) else []
        return Rendered(
            input_ids=[*before, *ids[overlap:]], conversation=conversation, counted=counted, reason=None
        )

    def _is_shown(self, conversation: Conversation, last: SaidCall, new: Sequence[Message]) -> bool:
        """Whether the template shows the history as it did before the new messages."""
        history = self._tokens.hide(list(last.conversation.messages))
        answer = self._tokens.hide(last.answer)
        answer["content"] += answer_mark
        before = self.glue.render([*history, answer], conversation.inputs, prompt=False)
        after = self.glue.render([*history, answer, *self._tokens.hide(list(new))], conversation.inputs)
        shown, found, _ = before.partition(answer_mark)
        return bool(found) and after.startswith(shown + answer_mark)

    def boundary(self, before: Sequence[int], after: Sequence[int]) -> list[Counted]:
        """Whether sampled tokens and what follows them meet without a special token between."""
        special = self._tokens.special_ids
        is_hard = before[-1] in special or (len(after) > 0 and after[0] in special)
        return [] if is_hard else [Counted.SOFT_BOUNDARY]

    def _whole_text(self, conversation: Conversation) -> str:
        messages = self._tokens.hide(list(conversation.messages))
        if not conversation.goes_on:
            return self.glue.render(messages, conversation.inputs)
        text, found, _ = self.glue.render(_open(messages), conversation.inputs, prompt=False).partition(
            open_mark
        )
        if not found:
            raise BadRequest("the chat template hides the last message, so it cannot be continued")
        return text


def _open(messages: Sequence[Message]) -> list[Message]:
    """Messages whose last one ends in a mark, so that the text is cut before the template closes it."""
    last = dict(messages[-1])
    last["content"] += open_mark
    return [*messages[:-1], last]


def _begins_with(conversation: Conversation, recorded: Conversation) -> bool:
    """Whether messages begin with recorded ones, as an agent echoes them."""
    length = len(recorded.messages)
    return conversation.keys[:length] == recorded.keys and all(
        map(is_same_reasoning, conversation.messages, recorded.messages)
    )


def _restored(conversation: Conversation, known: Sequence[SaidCall]) -> Conversation:
    """The conversation with the reasoning that the agent left out of its echo."""
    messages = list(conversation.messages)
    for call in known:
        at = len(call.conversation.messages)
        if "reasoning" in call.answer and "reasoning" not in messages[at]:
            messages[at] = {**messages[at], "reasoning": call.answer["reasoning"]}
    return replace(conversation, messages=messages)


def _fork_reason(
    conversation: Conversation, said: Sequence[SaidCall], known: Sequence[SaidCall]
) -> str | None:
    """What the messages tell of a fork; None where only the ids do."""
    if known:
        return "tools"
    if any(conversation.keys == call.conversation.keys for call in said):
        return None
    is_edited = any(conversation.keys[0] == call.conversation.keys[0] for call in said)
    return "edited" if is_edited else None


def _has_foreign(conversation: Conversation, said: Sequence[SaidCall]) -> bool:
    """Whether an assistant's message is none of the policy's answers, wherever those were given."""
    answers: dict[str, list[Message]] = {}
    for call in said:
        answers.setdefault(call.exchange.keys[-1], []).append(call.answer)
    return any(
        message["role"] == "assistant"
        and not any(is_same_reasoning(message, answer) for answer in answers.get(key, []))
        for message, key in zip(conversation.messages, conversation.keys, strict=True)
    )


def _overlap(turn_ids: Sequence[int], glue_ids: Sequence[int], most: int) -> int:
    """How many first ids of the glue's closing the turn ends with already."""
    lengths = range(min(most, len(turn_ids), len(glue_ids)), 0, -1)
    return next((n for n in lengths if list(turn_ids[-n:]) == list(glue_ids[:n])), 0)
