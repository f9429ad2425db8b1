"""What was asked, as a note of bytes: kept with the recorded call, and read again by the process that serves next."""

from __future__ import annotations

import json
import zlib
from typing import TYPE_CHECKING

from producers.sessions.rendering import Conversation
from producers.sessions.requests import Request

if TYPE_CHECKING:
    from typing import Any


def note_of(request: Request, conversation: Conversation | None) -> bytes:
    """The note of a request; `conversation` is its own with the reasoning that an echo left out."""
    note: dict[str, Any] = {"stop": list(request.stop)}
    if conversation is not None:
        note["chat"] = {
            "messages": list(conversation.messages),
            "tools": list(conversation.tools),
            "arguments": dict(conversation.arguments),
            "goes_on": conversation.goes_on,
        }
    elif isinstance(request.prompt, str):
        note["text"] = request.prompt
    # The fastest level: conversations repeat themselves, and what is noted is rarely read.
    return zlib.compress(json.dumps(note, ensure_ascii=False).encode(), 1)


def request_of(note: bytes) -> Request:
    """The request of a note, as far as its answer depends on it. Only for notes of `note_of`."""
    read = json.loads(zlib.decompress(note).decode())
    chat = read.get("chat")
    return Request(
        digest="",
        conversation=None if chat is None else Conversation(**chat),
        prompt=read.get("text", ()),
        stop=tuple(read["stop"]),
    )
