"""Chat messages in one form, so that an echo is told from an edit.

Equal are: a key that is absent, null or empty; arguments of a tool call with one JSON value; an answer but for outer
white space; an answer whose reasoning the echo leaves out. Everything else is an edit.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from producers.sessions.errors import BadRequest

if TYPE_CHECKING:
    from collections.abc import Mapping

Message = dict[str, Any]
"""One message in canonical form: `role`, `content` (text), and what else is not empty."""

roles = ("system", "developer", "user", "assistant", "tool")


def canonical_messages(messages: object) -> list[Message]:
    """Canonical form of a request's messages. Raises BadRequest, naming the first that is malformed."""
    if not isinstance(messages, list) or not messages:
        raise BadRequest("messages is empty or no list; give at least one message with role and content")
    return [canonical_message(message, f"messages[{at}]") for at, message in enumerate(messages)]


def canonical_message(message: object, place: str = "message") -> Message:
    """Canonical form of one message. Raises BadRequest."""
    if not isinstance(message, dict) or message.get("role") not in roles:
        raise BadRequest(f"{place} has no role among {', '.join(roles)}")
    canonical = {key: value for key, value in message.items() if value not in (None, "", [], {})}
    reasoning = canonical.pop("reasoning_content", None) or canonical.pop("reasoning", None)
    canonical.pop("reasoning", None)
    canonical["content"] = _text(message.get("content"), place)
    if reasoning:
        canonical["reasoning"] = _text(reasoning, place)
    if "tool_calls" in canonical:
        canonical["tool_calls"] = [_tool_call(call, place) for call in _list(canonical["tool_calls"], place)]
    return canonical


def canonical_json(value: object) -> str:
    """One text for each JSON value."""
    return json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":"))


def echo_key(message: Message) -> str:
    """Equal for messages that say the same, reasoning aside."""
    said = {key: value for key, value in message.items() if key != "reasoning"}
    if message["role"] == "assistant":
        said["content"] = said["content"].strip()
    return canonical_json(said)


def is_same_reasoning(message: Message, recorded: Message) -> bool:
    """Whether a message holds the reasoning of a recorded one, or, as an answer's echo, none."""
    heard, said = message.get("reasoning", "").strip(), recorded.get("reasoning", "").strip()
    return heard == said or (not heard and message["role"] == "assistant")


def for_template(message: Message) -> Message:
    """A message as chat templates read it: arguments as values, reasoning under the names in use."""
    shown = dict(message)
    if "reasoning" in shown:
        shown["reasoning_content"] = shown["reasoning"]
    if "tool_calls" in shown:
        shown["tool_calls"] = [_shown_call(call) for call in shown["tool_calls"]]
    return shown


def _shown_call(call: Mapping[str, Any]) -> dict[str, Any]:
    function = dict(call["function"])
    value = _json_value(function["arguments"])
    if isinstance(value, dict):
        function["arguments"] = value
    return {**call, "function": function}


def _text(content: object, place: str) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    parts = _list(content, place)
    if not all(isinstance(part, dict) and isinstance(part.get("text"), str) for part in parts):
        raise BadRequest(f"{place} has content that is no text; images, audio and files are not served")
    return "".join(part["text"] for part in parts)


def _list(value: object, place: str) -> list[Any]:
    if not isinstance(value, list):
        raise BadRequest(f"{place} holds a {type(value).__name__} where a list is expected")
    return value


def _tool_call(call: object, place: str) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(call, dict) or not isinstance(function, dict):
        raise BadRequest(f"{place} has a tool call without a function")
    name, arguments = function.get("name"), function.get("arguments") or ""
    if not isinstance(name, str) or not isinstance(arguments, str):
        raise BadRequest(f"{place} has a tool call whose name or arguments are no text")
    value = _json_value(arguments)
    canonical: dict[str, Any] = {
        "type": "function",
        "function": {"name": name, "arguments": arguments if value is None else canonical_json(value)},
    }
    return canonical | ({"id": str(call["id"])} if call.get("id") else {})


def _json_value(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None
