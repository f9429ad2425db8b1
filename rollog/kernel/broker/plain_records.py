"""The records of a batch, taken out by code that knows only what a whole batch looks like.

kafka-python calls a function for every number of a record, thirty times for one with eight headers. Here most of them
are read where they stand. Whatever is unusual raises some error, and the caller gives the batch to the library, which
decides; so nothing of what is refused depends on this module.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kafka.record.default_records import DefaultRecord

if TYPE_CHECKING:
    from collections.abc import Callable

_most_names = 256
_names: dict[bytes, str] = {}
"""Names of headers met before, as text; no more of them than any program uses."""
_no_bytes, _not_small = 1, 0x81
"""A length of -1 in one byte; the bits of a byte that is no small length."""


def plain_records(
    data: bytes, place: int, num_records: int, *, base_offset: int, timestamp: Callable[[int], int], kind: int
) -> list[Any]:
    """The records from `place` on, which must fill the rest; `timestamp` makes one of a record's difference."""
    records: list[Any] = []
    for _ in range(num_records):
        length, place = _number(data, place)
        end = place + length
        if data[place]:
            raise ValueError("attributes that no record has")
        difference, place = _number(data, place + 1)
        number, place = _number(data, place)
        key, place = _content(data, place)
        value, place = _content(data, place)
        count, place = _number(data, place)
        headers: list[tuple[str, bytes | None]] = []
        while count > 0:
            count -= 1
            size = data[place]
            if size & _not_small:
                raise ValueError("a header whose name is long or missing")
            begin = place + 1
            place = begin + (size >> 1)
            name = data[begin:place]
            size = data[place]
            if size & _not_small:
                content, place = _content(data, place)
            else:
                begin = place + 1
                place = begin + (size >> 1)
                content = data[begin:place]
            headers.append((_names.get(name) or _name(name), content))
        if place != end:
            raise ValueError("a record that is longer or shorter than it says")
        records.append(
            DefaultRecord(length, base_offset + number, timestamp(difference), kind, key, value, headers)
        )
    if place != len(data):
        raise ValueError("bytes behind the last record")
    return records


def _content(data: bytes, place: int) -> tuple[bytes | None, int]:
    length = data[place]
    if length == _no_bytes:
        return None, place + 1
    if length & _not_small:
        length, place = _number(data, place)
        if length < 0:
            raise ValueError("a length below nothing")
    else:
        length >>= 1
        place += 1
    end = place + length
    return data[place:end], end


def _number(data: bytes, place: int) -> tuple[int, int]:
    """The zigzag number at `place`, and where it ends."""
    byte = data[place]
    place += 1
    number = byte & 0x7F
    bits = 7
    while byte & 0x80:
        byte = data[place]
        place += 1
        number |= (byte & 0x7F) << bits
        bits += 7
    return (number >> 1) ^ -(number & 1), place


def _name(name: bytes) -> str:
    text = name.decode()
    if len(_names) < _most_names:
        _names[name] = text
    return text
