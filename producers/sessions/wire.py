"""What worker and endpoint's process say to each other: a JSON head, and bytes that are not looked into.

A message is `length of the head` (4 bytes, big-endian), the head, and its parts one after another; the head's `parts`
has their lengths. Token ids are parts of little-endian int32. Both sides are ours: what is malformed is a defect, and
ends the connection (ValueError).
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from producers.sessions.errors import (
    BadRequest,
    BudgetSpent,
    CallsInFlight,
    Leaving,
    Overlong,
    SessionClosed,
    SessionFailed,
)
from producers.sessions.recorded_calls import Question, RecordedCall
from producers.sessions.recording import Counted
from schemas import FinishReason, int32_array

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Mapping

    from rollog.kernel.errors import RollogError
    from schemas import Int32Array

_length = struct.Struct(">I")
_most_head_bytes = 1 << 20
_most_part_bytes = 256 << 20

_refusals = {
    kind.__name__: kind for kind in (BadRequest, BudgetSpent, CallsInFlight, Leaving, Overlong, SessionClosed)
}


@dataclass(frozen=True, slots=True)
class Message:
    """One message."""

    head: Mapping[str, Any]
    parts: tuple[bytes, ...] = ()


def packed(message: Message) -> bytes:
    """The bytes of a message."""
    head = json.dumps({**message.head, "parts": [len(part) for part in message.parts]}).encode()
    return b"".join((_length.pack(len(head)), head, *message.parts))


async def next_message(reader: asyncio.StreamReader) -> Message | None:
    """The next message, or None at the end. Raises ValueError, OSError, and EOFError where it breaks off."""
    first = await reader.read(1)
    if not first:
        return None
    (length,) = _length.unpack(first + await reader.readexactly(_length.size - 1))
    if length > _most_head_bytes:
        raise ValueError(f"the head of a message has {length} bytes")
    head = json.loads(await reader.readexactly(length))
    lengths = head.pop("parts")
    if sum(lengths) > _most_part_bytes:
        raise ValueError(f"the parts of a message have {sum(lengths)} bytes")
    return Message(head, tuple([await reader.readexactly(each) for each in lengths]))


def question_message(number: int, session: str, question: Question) -> Message:
    """Question `number` of a process, for that session."""
    head = {
        "ask": number,
        "session": session,
        "digest": question.digest,
        "max_tokens": question.max_tokens,
        "stop": list(question.stop),
        "is_retry": question.is_retry,
        "reason": question.reason,
        "is_constrained": question.is_constrained,
        "counted": list(question.counted),
    }
    return Message(head, (_bytes_of(question.input_ids), question.said))


def question_of(message: Message) -> Question:
    """The question of such a message."""
    head, (input_ids, said) = message.head, message.parts
    return Question(
        digest=head["digest"],
        input_ids=_ids_of(input_ids),
        max_tokens=head["max_tokens"],
        stop=tuple(head["stop"]),
        is_retry=head["is_retry"],
        reason=head["reason"],
        is_constrained=head["is_constrained"],
        counted=tuple(map(Counted, head["counted"])),
        said=said,
    )


def call_message(head: Mapping[str, Any], call: RecordedCall) -> Message:
    """A recorded call behind what `head` says of it."""
    facts = {"number": call.number, "finish_reason": call.finish_reason, "created": call.created}
    return Message({**head, **facts}, (_bytes_of(call.input_ids), _bytes_of(call.turn_ids), call.said))


def call_of(message: Message) -> RecordedCall:
    """The recorded call of such a message."""
    head, (input_ids, turn_ids, said) = message.head, message.parts
    return RecordedCall(
        number=head["number"],
        input_ids=_ids_of(input_ids),
        turn_ids=_ids_of(turn_ids),
        finish_reason=FinishReason(head["finish_reason"]),
        created=head["created"],
        said=said,
    )


def error_message(number: int, error: RollogError) -> Message:
    """Why question `number` has no recorded call."""
    name = error.name if isinstance(error, SessionFailed) else None
    return Message({"failed": number, "error": type(error).__name__, "name": name, "text": str(error)})


def error_of(message: Message) -> RollogError:
    """The error of such a message."""
    head = message.head
    if head["error"] in _refusals:
        return _refusals[head["error"]](head["text"])
    return SessionFailed(head["name"] or head["error"], head["text"])


def _bytes_of(ids: Int32Array) -> bytes:
    return ids.astype("<i4").tobytes()


def _ids_of(data: bytes) -> Int32Array:
    return int32_array(np.frombuffer(data, dtype="<i4"))
