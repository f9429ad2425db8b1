"""Record of the `dead-letters` topic: one that could not be decoded or validated, kept with its bytes."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetter:
    """Bytes, place and reason of one refused record, written once by the owner of its topic.

    Of a record too large to be copied there is the sha256 of its value instead of its bytes.
    """

    topic: str
    partition: int
    offset: int
    reason: str
    error_class: str
    owner: str
    key: bytes | None = None
    value: bytes | None = None
    headers: dict[str, bytes] = field(default_factory=dict)
    value_sha256: bytes | None = None
