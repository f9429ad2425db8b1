"""How large a record is on its way to Kafka, and how large it may be."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rollog.kernel.broker.ports import Headers

default_record_limit_bytes = 1_048_588
"""`max.message.bytes` of a topic that does not set it."""
smallest_record_limit_bytes = 64 << 10
"""The least that `broker.max_record_bytes` may be."""
largest_record_limit_bytes = 64 << 20
"""Above this, a produce request would come close to what brokers accept on a socket by default (100 MiB)."""
most_inflated_bytes = 2 * largest_record_limit_bytes
"""Of one batch that is read. rollog's own producers compress nothing, so what they write is never larger than the
largest record."""
dead_letter_margin_bytes = 64 << 10
"""What a dead letter may add to the record it holds."""
registry_margin_bytes = 64
"""What a schema registry's framing adds to a record: a header with the fingerprint."""
request_margin_bytes = 16 << 10
"""What a client adds to its largest record: framing of the request around it."""

_batch_overhead_bytes = 61
_record_overhead_bytes = 21
_header_overhead_bytes = 10


def record_bytes(value: bytes | None, key: bytes | None = None, headers: Headers = ()) -> int:
    """Upper bound of the bytes a lone record takes as a batch, the figure `max.message.bytes` is compared with."""
    size = _batch_overhead_bytes + _record_overhead_bytes
    if value is not None:
        size += len(value)
    if key is not None:
        size += len(key)
    for name, content in headers:
        size += _header_overhead_bytes + len(name) * (1 if name.isascii() else 4) + len(content)
    return size
