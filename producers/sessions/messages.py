"""A turn's ids as the message that is handed out: text, reasoning, tool calls.

The message is what the agent acts on; the record keeps the ids. So parsing may lose something, and never fails: what is
no tool call is text.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from producers.sessions.conversations import canonical_json

if TYPE_CHECKING:
    from collections.abc import Sequence

    from producers.sessions.rendering import Conversation
    from producers.sessions.text_tokens import TextTokens

_tags = frozenset({"<think>", "</think>", "<tool_call>", "</tool_call>"})
_tool_call = re.compile(r"<tool_call>(.*?)(?:</tool_call>|\Z)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call of a tool: its name, and its arguments as JSON text."""

    name: str
    arguments: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedTurn:
    """What a turn says."""

    content: str
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()


class TurnParser(Protocol):
    """Reads the tokens of a turn."""

    def parse(
        self, conversation: Conversation, input_ids: Sequence[int], turn_ids: Sequence[int]
    ) -> ParsedTurn:
        """What the turn says in answer to the conversation. Raises nothing for whatever was sampled."""
        ...


def assistant_message(
    parsed: ParsedTurn, input_ids: Sequence[int], turn_ids: Sequence[int]
) -> dict[str, Any]:
    """The message as clients read it. Ids of tool calls are a function of the ids, so an answer is always the same."""
    message: dict[str, Any] = {"role": "assistant", "content": parsed.content or None}
    if parsed.reasoning:
        message["reasoning_content"] = parsed.reasoning
    if parsed.tool_calls:
        digest = hashlib.sha256(json.dumps([list(input_ids), list(turn_ids)]).encode()).hexdigest()[:20]
        message["tool_calls"] = [
            {
                "id": f"call_{digest}_{number}",
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for number, call in enumerate(parsed.tool_calls)
        ]
    elif message["content"] is None:
        message["content"] = ""
    return message


class PlainParser:
    """Text, reasoning between `<think>` tags, and calls as JSON between `<tool_call>` tags where tools are offered."""

    def __init__(self, tokens: TextTokens) -> None:
        self._tokens = tokens

    def parse(
        self, conversation: Conversation, input_ids: Sequence[int], turn_ids: Sequence[int]
    ) -> ParsedTurn:
        """What the turn says. Calls that are no JSON with name and arguments stay text."""
        del input_ids
        reasoning, content = _split_reasoning(self._tokens.text_with(turn_ids, _tags))
        calls = (
            [_hermes_call(found[1]) for found in _tool_call.finditer(content)] if conversation.tools else []
        )
        whole = tuple(call for call in calls if call is not None)
        if not whole or len(whole) < len(calls):
            return ParsedTurn(content=content, reasoning=reasoning)
        return ParsedTurn(content=_tool_call.sub("", content).strip(), reasoning=reasoning, tool_calls=whole)


def _split_reasoning(text: str) -> tuple[str, str]:
    """Reasoning and the rest. The opening tag may stand in the prompt; without a closing one all is reasoning."""
    thought, closed, content = text.partition("</think>")
    if closed:
        return thought.strip().removeprefix("<think>").strip(), content.lstrip("\n")
    if text.lstrip().startswith("<think>"):
        return text.strip().removeprefix("<think>").strip(), ""
    return "", text


def _hermes_call(text: str) -> ToolCall | None:
    try:
        call = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(call, dict) or not isinstance(call.get("name"), str):
        return None
    arguments = call.get("arguments", {})
    return ToolCall(call["name"], canonical_json(arguments)) if isinstance(arguments, dict) else None
