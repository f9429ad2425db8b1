"""What a dead letter says, and when dead letters are a flood."""

from __future__ import annotations

from hashlib import sha256

import pytest

from rollog.kernel.broker.ports import Record
from rollog.kernel.errors import DecodeError
from rollog.rules.dead_letters import DeadLetterLimit, dead_letter


def a_record(topic: str = "samples", offset: int = 7) -> Record:
    return Record(
        topic=topic,
        partition=1,
        offset=offset,
        value=b"bytes",
        key=b"key",
        headers=[("a", b"1"), ("a", b"2")],
    )


def test_a_letter_holds_the_record_its_place_and_why() -> None:
    letter = dead_letter(
        a_record(), reason="x" * 5000, error_class="SchemaError", owner="trainer", most_bytes=1 << 20
    )
    assert (letter.topic, letter.partition, letter.offset) == ("samples", 1, 7)
    assert (letter.key, letter.value, letter.headers) == (b"key", b"bytes", {"a": b"2"})
    assert (len(letter.reason), letter.error_class, letter.owner) == (2000, "SchemaError", "trainer")


def test_the_limit_counts_what_comes_in_a_row_topic_by_topic() -> None:
    limit = DeadLetterLimit(2)
    for _ in range(3):
        limit.dead(a_record(), "bad")
        limit.dead(a_record("workers"), "bad")
        limit.good("samples")
        limit.dead(a_record(), "bad")
        limit.good("samples")
        limit.good("workers")
    limit.dead(a_record("control"), "bad")
    limit.dead(a_record("control"), "bad")
    with pytest.raises(DecodeError, match=r"3 records in a row on control .*offset 9: bad; .*--set broker"):
        limit.dead(a_record("control", 9), "bad")


def test_a_record_too_large_for_a_dead_letter_leaves_its_size_and_digest() -> None:
    record = Record(topic="samples", partition=1, offset=2, value=b"x" * 5000, key=b"k")
    small = dead_letter(record, reason="bad", error_class="E", owner="o", most_bytes=6000)
    assert (small.value, small.value_sha256) == (record.value, None)
    large = dead_letter(record, reason="bad", error_class="E", owner="o", most_bytes=5000)
    assert (large.value, large.key, large.partition, large.offset) == (None, None, 1, 2)
    assert large.value_sha256 == sha256(record.value or b"").digest()
    assert "bytes are not copied" in large.reason
