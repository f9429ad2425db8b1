"""The object that holds the arrays and texts of a sample too large for a record.

It is written as records are and stands in the store, under the sha256 of its bytes; it travels on no topic.
"""

from __future__ import annotations

from dataclasses import dataclass

from schemas.arrays import ArrayEquality, Float32Array, Int32Array, UInt8Array


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ForkPayload(ArrayEquality):
    """The arrays of one fork; `token_ids`, `behaviour_logprobs` and `loss_mask` have one entry per token."""

    context: Int32Array
    token_ids: Int32Array
    behaviour_logprobs: Float32Array
    loss_mask: UInt8Array


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SamplePayload(ArrayEquality):
    """The arrays and texts of one sample, named as they are there; `forks` in the sample's order."""

    prompt_token_ids: Int32Array
    token_ids: Int32Array
    behaviour_logprobs: Float32Array
    loss_mask: UInt8Array
    response_text: str
    forks: tuple[ForkPayload, ...] = ()
