"""An agent that chats with a session through renderer and recorder, with answers of a test's choice."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from producers.sessions.budgets import Budget
from producers.sessions.conversations import canonical_message, canonical_messages
from producers.sessions.recorder import Session
from producers.sessions.rendering import Conversation, Rendered, SaidCall
from producers.sessions.text_tokens import TextTokens
from schemas import FinishReason
from support.chat_models import a_chat_tokenizer, a_renderer
from support.remembering_engine import RememberingEngine, check_recording

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from producers.sessions.recording import Recording
    from producers.sessions.rendering import ConversationRenderer

closing = "<|im_end|>"


@dataclass
class ChattingAgent:
    renderer: ConversationRenderer = field(default_factory=a_renderer)
    engine: RememberingEngine = field(default_factory=RememberingEngine)
    session: Session = field(
        default_factory=lambda: Session(
            Budget(turns=99, tokens=99_999, turn_tokens=9999, context_tokens=99_999)
        )
    )
    tokens: TextTokens = field(default_factory=lambda: TextTokens(a_chat_tokenizer()))
    said: list[SaidCall] = field(default_factory=list)
    sent: list[Rendered] = field(default_factory=list)

    def ask(
        self,
        messages: Sequence[Mapping[str, Any]],
        text: str,
        *,
        answer: Mapping[str, Any] | None = None,
        tools: Sequence[Mapping[str, Any]] = (),
        arguments: Mapping[str, Any] | None = None,
        goes_on: bool = False,
        finish_reason: FinishReason = FinishReason.STOP,
    ) -> list[int]:
        """Send messages; the policy samples `text`, which is handed out as `answer`. Returns the ids that were sent."""
        conversation = Conversation(
            messages=canonical_messages([dict(message) for message in messages]),
            tools=tools,
            arguments=arguments or {},
            goes_on=goes_on,
        )
        rendered = self.renderer.render(conversation, self.said)
        turn_ids = self.tokens.added_ids(text)
        turn = self.engine.generate(rendered.input_ids, turn_ids, finish_reason=finish_reason)
        self.session.record(rendered.input_ids, turn, reason=rendered.reason)
        assert rendered.conversation is not None
        handed_out = answer or {"role": "assistant", "content": text.removesuffix(closing)}
        self.said.append(
            SaidCall(
                conversation=rendered.conversation,
                input_ids=rendered.input_ids,
                turn_ids=turn_ids,
                answer=canonical_message(dict(handed_out)),
            )
        )
        self.sent.append(rendered)
        return list(rendered.input_ids)

    def text(self, input_ids: Sequence[int]) -> str:
        return self.tokens.text(input_ids, with_special=True)

    def recording(self) -> Recording:
        """The checked recording of the session so far."""
        recording = self.session.recording(str)
        check_recording(recording, self.engine.sampled)
        return recording


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def assistant(text: str, **fields: object) -> dict[str, Any]:
    return {"role": "assistant", "content": text, **fields}


def tool(text: str, call_id: str = "call_1") -> dict[str, Any]:
    return {"role": "tool", "content": text, "tool_call_id": call_id}


def a_call(arguments: str = '{"a": 1}', call_id: str = "call_1") -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": "add", "arguments": arguments}}


def a_tool(name: str = "add") -> dict[str, Any]:
    return {
        "type": "function",
        "function": {"name": name, "parameters": {"type": "object", "properties": {}}},
    }
