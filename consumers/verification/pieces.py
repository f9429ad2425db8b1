"""What is compared: the response tokens of one sequence that name one version, with all that stands before them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from schemas import Float32Array, Int32Array, Sample

BoolArray = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Piece:
    """One segment of one sequence of a sample.

    `token_ids` are the response up to the segment's end, `recorded` their log-probabilities, `is_compared` whether a
    token belongs to the segment and was sampled by the policy (loss mask 1). What comes after the segment is left out:
    a causal model does not see it. `prompt_token_ids` of a fork hold what it shares, which is compared where it was
    sampled.
    """

    version: int
    weights_digest: str
    worker_id: str
    sample_id: str
    partition: int
    offset: int
    prompt_token_ids: Int32Array
    token_ids: Int32Array
    recorded: Float32Array
    is_compared: BoolArray
    sequence: int = 0

    @property
    def num_tokens(self) -> int:
        """Prompt and response together: what a prefill reads."""
        return len(self.prompt_token_ids) + len(self.token_ids)

    @property
    def num_compared(self) -> int:
        """Tokens whose log-probabilities are compared."""
        return int(np.count_nonzero(self.is_compared))


def pieces_of(sample: Sample, partition: int, offset: int) -> list[Piece]:
    """The segments of all sequences of a sample that have tokens to compare."""
    pieces = []
    for number, row in enumerate(sample.rows()):
        for segment in row.segments:
            is_compared = row.loss_mask[: segment.end] != 0
            is_compared[: segment.start] = False
            if is_compared.any():
                pieces.append(
                    Piece(
                        version=segment.version,
                        weights_digest=segment.weights_digest,
                        worker_id=sample.worker_id,
                        sample_id=sample.sample_id,
                        partition=partition,
                        offset=offset,
                        prompt_token_ids=row.prompt_token_ids,
                        token_ids=row.token_ids[: segment.end],
                        recorded=row.behaviour_logprobs[: segment.end],
                        is_compared=is_compared,
                        sequence=number,
                    )
                )
    return pieces
