"""Damaged bytes are refused or read as some other valid record; nothing else ever happens."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from schemas import record_types
from schemas.catalogue import load_catalogue
from schemas.codec import SchemaError, decode, encode

golden = sorted((Path(__file__).parents[2] / "data" / "golden").glob("*.bin"))
frame_size = 10
quick = settings(max_examples=100, suppress_health_check=[HealthCheck.too_slow])
huge_numbers = st.sampled_from(
    [
        b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01",  # 2**63 - 1
        b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",  # -2**63
        b"\xfe\xff\xff\xff\x0f",  # 2**31 - 1
        b"\x80\x80\x80\x80\x80\x80\x80\x80\x80\x80\x80\x80\x80\x01",  # longer than any number
        b"\x01",  # -1
    ]
)


def read(data: bytes) -> None:
    """Decode; whatever is accepted must also be a record that can be written."""
    try:
        record = decode(data)
    except SchemaError:
        return
    assert type(record) in record_types
    encode(record)


def spliced(data: bytes, position: int, length: int, replacement: bytes) -> bytes:
    return data[:position] + replacement + data[position + length :]


@st.composite
def mutations(draw: st.DrawFn, data: bytes) -> bytes:
    for _ in range(draw(st.integers(1, 3))):
        position = draw(st.integers(frame_size, max(frame_size, len(data) - 1)))
        length = draw(st.integers(0, 8))
        replacement = draw(st.one_of(st.binary(max_size=8), huge_numbers))
        data = spliced(data, position, length, replacement)
    return data


@pytest.mark.parametrize("path", golden, ids=lambda path: path.stem)
@given(data=st.data())
@quick
def test_mutated_bytes_are_never_worse_than_refused(path: Path, data: st.DataObject) -> None:
    read(data.draw(mutations(path.read_bytes())))


@pytest.mark.parametrize("path", golden, ids=lambda path: path.stem)
def test_every_single_byte_may_be_damaged(path: Path) -> None:
    whole = path.read_bytes()
    for position in range(len(whole)):
        for replacement in (
            b"",
            b"\x00",
            b"\x01",
            b"\x7f",
            b"\x80",
            b"\xff",
            b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01",
        ):
            read(spliced(whole, position, 1, replacement))


@given(name=st.sampled_from(sorted(load_catalogue().current)), body=st.binary(max_size=300))
@quick
def test_any_body_under_a_known_fingerprint_is_never_worse_than_refused(name: str, body: bytes) -> None:
    read(b"\xc3\x01" + load_catalogue().current[name].fingerprint + body)


@given(data=st.binary(max_size=200))
@quick
def test_any_bytes_are_never_worse_than_refused(data: bytes) -> None:
    read(data)
