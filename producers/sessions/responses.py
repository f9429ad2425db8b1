"""Answers and errors in the form that clients of the OpenAI protocol read."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from producers.sessions.errors import (
    BadRequest,
    BudgetSpent,
    CallsInFlight,
    Leaving,
    Overlong,
    SessionClosed,
    SessionFailed,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from rollog.kernel.errors import RollogError

_piece_characters = 256

_statuses: dict[type[RollogError], tuple[int, str]] = {
    BadRequest: (400, "invalid_request"),
    Overlong: (400, "context_length_exceeded"),
    BudgetSpent: (403, "budget_spent"),
    SessionClosed: (410, "session_closed"),
    SessionFailed: (410, "session_failed"),
    CallsInFlight: (429, "calls_in_flight"),
    Leaving: (503, "worker_leaving"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What is handed out for a turn: a `message`, or, for a text completion, its content alone."""

    number: int
    message: Mapping[str, Any]
    finish_reason: str
    num_input_tokens: int
    num_tokens: int
    is_chat: bool
    model: str
    created: int

    @property
    def usage(self) -> dict[str, int]:
        """Tokens, as clients count them."""
        return {
            "prompt_tokens": self.num_input_tokens,
            "completion_tokens": self.num_tokens,
            "total_tokens": self.num_input_tokens + self.num_tokens,
        }

    def body(self) -> bytes:
        """The answer as one JSON object."""
        if self.is_chat:
            choice: dict[str, Any] = {"message": dict(self.message)}
        else:
            choice = {"text": self.message["content"]}
        return json.dumps(
            self._envelope([self._choice(self.finish_reason, choice)]) | {"usage": self.usage}
        ).encode()

    def events(self, *, has_usage: bool) -> Iterator[bytes]:
        """The answer as server-sent events, in pieces."""
        for delta in self._deltas():
            choice = {"delta": delta} if self.is_chat else {"text": delta["content"]}
            yield _event(self._envelope([self._choice(None, choice)], chunk=True))
        last: dict[str, Any] = {"delta": {}} if self.is_chat else {"text": ""}
        yield _event(self._envelope([self._choice(self.finish_reason, last)], chunk=True))
        if has_usage:
            yield _event(self._envelope([], chunk=True) | {"usage": self.usage})
        yield b"data: [DONE]\n\n"

    def _deltas(self) -> Iterator[dict[str, Any]]:
        if self.is_chat:
            yield {"role": "assistant", "content": ""}
        for name in ("reasoning_content", "content"):
            text = self.message.get(name) or ""
            for at in range(0, len(text), _piece_characters):
                yield {name: text[at : at + _piece_characters]}
        for index, call in enumerate(self.message.get("tool_calls", [])):
            yield {"tool_calls": [{"index": index, **call}]}

    def _choice(self, finish_reason: str | None, said: Mapping[str, Any]) -> dict[str, Any]:
        return {"index": 0, "finish_reason": finish_reason, "logprobs": None, **said}

    def _envelope(self, choices: list[dict[str, Any]], *, chunk: bool = False) -> dict[str, Any]:
        kind = "text_completion"
        if self.is_chat:
            kind = "chat.completion.chunk" if chunk else "chat.completion"
        prefix = "chatcmpl" if self.is_chat else "cmpl"
        return {
            "id": f"{prefix}-{self.number}",
            "object": kind,
            "created": self.created,
            "model": self.model,
            "choices": choices,
        }


def status_of(error: RollogError) -> int:
    """The HTTP status of an error; 500 where it is none of a call."""
    return _statuses.get(type(error), (500, ""))[0]


def error_body(message: str, code: str) -> bytes:
    """An error as clients read it."""
    return json.dumps({"error": {"message": message, "type": code, "param": None, "code": code}}).encode()


def error_body_of(error: RollogError) -> bytes:
    """The body of an error of a call."""
    return error_body(str(error), _statuses.get(type(error), (500, "server_error"))[1])


def error_event(error: RollogError) -> bytes:
    """An error after a stream has begun."""
    return b"data: " + error_body_of(error) + b"\n\n"


def _event(value: Mapping[str, Any]) -> bytes:
    return b"data: " + json.dumps(value).encode() + b"\n\n"
