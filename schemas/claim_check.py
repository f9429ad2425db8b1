"""Large samples apart: a record that keeps what rules need, and an object with arrays and texts. Pure.

    split    sample -> record that names an object, bytes of the object
    joined   record, bytes of the object -> sample

`joined` gives the very sample that was split; its record's `payload` is gone, for its arrays stand in it again.
"""

from __future__ import annotations

from dataclasses import replace
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import numpy as np

from schemas.arrays import float32_array, int32_array, uint8_array
from schemas.codec import decode_as, encode
from schemas.errors import SchemaError
from schemas.payloads import ForkPayload, SamplePayload
from schemas.sample_checks import check_sample
from schemas.samples import Payload

if TYPE_CHECKING:
    from collections.abc import Iterator

    from schemas.samples import Fork, Sample


def num_payload_bytes(sample: Sample) -> int:
    """Bytes of the arrays and texts of a sample, roughly what its object would have."""
    arrays = [sample.prompt_token_ids, *(fork.context for fork in sample.forks)]
    sized = sum(array.nbytes for array in arrays) + sum(
        row.token_ids.nbytes + row.behaviour_logprobs.nbytes + row.loss_mask.nbytes
        for row in _sequences(sample)
    )
    return sized + len(sample.response_text.encode())


def split(sample: Sample) -> tuple[Sample, bytes]:
    """The record of a sample without arrays and texts, and the bytes of the object that it names.

    Raises SchemaError for a sample that is not whole, or names an object already.
    """
    if sample.payload is not None:
        raise SchemaError(f"sample {sample.sample_id}: its arrays are in an object already")
    check_sample(sample)
    data = encode(
        SamplePayload(
            prompt_token_ids=sample.prompt_token_ids,
            token_ids=sample.token_ids,
            behaviour_logprobs=sample.behaviour_logprobs,
            loss_mask=sample.loss_mask,
            response_text=sample.response_text,
            forks=tuple(_of_fork(fork) for fork in sample.forks),
        )
    )
    payload = Payload(
        sha256=sha256(data).hexdigest(),
        num_bytes=len(data),
        num_prompt_tokens=len(sample.prompt_token_ids),
        num_tokens=tuple(len(row.token_ids) for row in _sequences(sample)),
        num_trained_tokens=_num_trained(sample),
    )
    nothing: dict[str, Any] = {
        "token_ids": int32_array(),
        "behaviour_logprobs": float32_array(),
        "loss_mask": uint8_array(),
    }
    record = replace(
        sample,
        **nothing,
        prompt_token_ids=int32_array(),
        response_text="",
        forks=tuple(replace(fork, **nothing, context=int32_array()) for fork in sample.forks),
        payload=payload,
    )
    return record, data


def joined(record: Sample, data: bytes) -> Sample:
    """The sample that was split into these two. Raises SchemaError where the bytes are not the object it names.

    What comes out passes the checks of a sample whose arrays stand in its record.
    """
    payload = record.payload
    if payload is None:
        raise SchemaError(f"sample {record.sample_id}: its record names no object")
    if len(data) != payload.num_bytes or sha256(data).hexdigest() != payload.sha256:
        raise SchemaError(f"sample {record.sample_id}: the object is not {payload.sha256}")
    held = decode_as(SamplePayload, data)
    if len(held.forks) != len(record.forks):
        raise SchemaError(
            f"sample {record.sample_id}: the object has {len(held.forks)} forks, the record {len(record.forks)}"
        )
    sample = replace(
        record,
        prompt_token_ids=held.prompt_token_ids,
        token_ids=held.token_ids,
        behaviour_logprobs=held.behaviour_logprobs,
        loss_mask=held.loss_mask,
        response_text=held.response_text,
        forks=tuple(
            replace(
                fork,
                context=arrays.context,
                token_ids=arrays.token_ids,
                behaviour_logprobs=arrays.behaviour_logprobs,
                loss_mask=arrays.loss_mask,
            )
            for fork, arrays in zip(record.forks, held.forks, strict=True)
        ),
        payload=None,
    )
    _check_lengths(sample, payload)
    check_sample(sample)
    return sample


def _of_fork(fork: Fork) -> ForkPayload:
    return ForkPayload(
        context=fork.context,
        token_ids=fork.token_ids,
        behaviour_logprobs=fork.behaviour_logprobs,
        loss_mask=fork.loss_mask,
    )


def _check_lengths(sample: Sample, payload: Payload) -> None:
    """The record says what its object holds: rules went by its numbers."""
    found = (
        len(sample.prompt_token_ids),
        tuple(len(row.token_ids) for row in _sequences(sample)),
        _num_trained(sample),
    )
    said = (payload.num_prompt_tokens, payload.num_tokens, payload.num_trained_tokens)
    if found != said:
        raise SchemaError(
            f"sample {sample.sample_id}: prompt, sequences and trained tokens are {found} in the object, the record "
            f"says {said}"
        )


def _num_trained(sample: Sample) -> int:
    return sum(int(np.count_nonzero(row.loss_mask)) for row in _sequences(sample))


def _sequences(sample: Sample) -> Iterator[Sample | Fork]:
    yield sample
    yield from sample.forks
