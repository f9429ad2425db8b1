"""A sample is split into a record and an object, and the two give it back; nothing else does."""

from __future__ import annotations

from dataclasses import replace
from hashlib import sha256
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.forked_samples import a_session

from schemas import Fork, Payload, SamplePayload, SchemaError
from schemas.claim_check import joined, num_payload_bytes, split
from schemas.codec import decode, decode_as, encode

if TYPE_CHECKING:
    from schemas import Sample


def sessions() -> st.SearchStrategy[Sample]:
    return st.builds(
        lambda replica, seed, text, rewards: replace(
            a_session(1, replica, seed=seed, turn_rewards=rewards), response_text=text
        ),
        replica=st.integers(0, 7),
        seed=st.integers(0, 1000),
        text=st.text(max_size=30),
        rewards=st.booleans(),
    )


@given(sample=sessions())
def test_record_and_object_give_the_sample_back(sample: Sample) -> None:
    record, data = split(sample)
    assert decode(encode(record)) == record
    assert joined(record, data) == sample
    assert record.num_tokens == sample.num_tokens
    assert record.num_sampled_tokens == sample.num_sampled_tokens
    assert record.first_version == sample.first_version
    assert record.all_segments == sample.all_segments
    assert num_payload_bytes(record) == 0
    assert num_payload_bytes(sample) <= len(data)


@given(sample=sessions(), place=st.integers(0, 10_000), change=st.integers(1, 255))
def test_an_object_with_one_other_byte_is_refused(sample: Sample, place: int, change: int) -> None:
    record, data = split(sample)
    other = bytearray(data)
    other[place % len(data)] ^= change
    with pytest.raises(SchemaError):
        joined(record, bytes(other))
    with pytest.raises(SchemaError):
        joined(record, data + b"\0")


def renamed(record: Sample, data: bytes) -> Sample:
    """The record, naming other bytes as its object."""
    payload = record.payload
    assert payload is not None
    return replace(record, payload=replace(payload, sha256=sha256(data).hexdigest(), num_bytes=len(data)))


def a_forked_session() -> Sample:
    sessions = (a_session(1, replica, seed=seed) for seed in range(9) for replica in range(8))
    return next(sample for sample in sessions if sample.forks and sample.loss_mask.any())


def test_an_object_of_its_name_that_does_not_fit_the_record_is_refused() -> None:
    record, data = split(a_forked_session())
    held = decode_as(SamplePayload, data)
    shorter = encode(replace(held, token_ids=held.token_ids[:-1]))
    with pytest.raises(SchemaError, match="the record says"):
        joined(renamed(record, shorter), shorter)
    fewer = encode(replace(held, forks=held.forks[:-1]))
    with pytest.raises(SchemaError, match="forks, the record"):
        joined(renamed(record, fewer), fewer)
    unmasked = encode(replace(held, loss_mask=held.loss_mask * 0))
    with pytest.raises(SchemaError):
        joined(renamed(record, unmasked), unmasked)
    other = encode(a_forked_session())
    with pytest.raises(SchemaError, match="expected a SamplePayload"):
        joined(renamed(record, other), other)


def test_a_fork_of_the_record_that_shares_more_than_there_is_is_refused_once_joined() -> None:
    record, data = split(a_forked_session())
    forks: tuple[Fork, ...] = tuple(replace(fork, shared=10_000) for fork in record.forks)
    with pytest.raises(SchemaError, match="shared is 10000"):
        joined(replace(record, forks=forks), data)


@pytest.mark.parametrize("name", ["../../etc/passwd", "AB" * 32, "ab" * 31, ""])
def test_a_record_names_nothing_but_a_digest(name: str) -> None:
    record, _ = split(a_forked_session())
    payload = record.payload
    assert isinstance(payload, Payload)
    with pytest.raises(SchemaError, match="no name of an object"):
        encode(replace(record, payload=replace(payload, sha256=name)))
