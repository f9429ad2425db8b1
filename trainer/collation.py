"""From samples to padded tensors.

Shapes: B samples of a micro-batch, T sequence positions (prompt and response), R response positions, N trained
tokens. Sequences are padded on the right, so positions count from 0 without gaps and a causal model needs no
attention mask: nothing real ever looks at padding.
"""
# ruff: noqa: N815 - fields that are tensors carry shape suffixes

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from schemas.arrays import float32_array

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trainer.engines.ports import TrainingSample


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PaddedBatch:
    """One micro-batch.

    `source_N` are places in the flattened (B, T) grid whose logits predict trained tokens, `target_N` these
    tokens, `response_N` their places in the flattened (B, R) grid. Tokens whose loss mask is 0 are in none.
    `lags_BR` is -1 where the lag of a token is not known.
    """

    input_ids_BT: Tensor
    source_N: Tensor
    target_N: Tensor
    response_N: Tensor
    behaviour_logprobs_BR: Tensor
    mask_BR: Tensor
    advantages_B: Tensor
    lags_BR: Tensor

    def to(self, device: torch.device) -> PaddedBatch:
        """The same micro-batch on `device`."""
        return PaddedBatch(**{name: getattr(self, name).to(device) for name in self.__slots__})


def collate(samples: Sequence[TrainingSample], *, pad_token_id: int = 0) -> PaddedBatch:
    """Pad samples to a micro-batch; without samples, one sequence of padding that trains nothing."""
    num_rows = max(len(samples), 1)
    width = max((sample.num_tokens for sample in samples), default=1)
    response_width = max((len(sample.token_ids) for sample in samples), default=1) or 1
    input_ids_BT = np.full((num_rows, max(width, 1)), pad_token_id, dtype=np.int64)
    behaviour_BR = np.zeros((num_rows, response_width), dtype=np.float32)
    mask_BR = np.zeros((num_rows, response_width), dtype=np.bool_)
    lags_BR = np.full((num_rows, response_width), -1, dtype=np.int64)
    starts_B = np.zeros(num_rows, dtype=np.int64)
    for row, sample in enumerate(samples):
        start, length = len(sample.prompt_token_ids), len(sample.token_ids)
        input_ids_BT[row, :start] = sample.prompt_token_ids
        input_ids_BT[row, start : start + length] = sample.token_ids
        behaviour_BR[row, :length] = sample.behaviour_logprobs
        mask_BR[row, :length] = sample.loss_mask != 0
        if sample.lags is not None:
            lags_BR[row, :length] = sample.lags
        starts_B[row] = start
    rows_N, columns_N = np.nonzero(mask_BR)
    tokens_N = rows_N * input_ids_BT.shape[1] + starts_B[rows_N] + columns_N
    advantages = float32_array([sample.advantage for sample in samples] or [0.0])
    return PaddedBatch(
        input_ids_BT=torch.from_numpy(input_ids_BT),
        source_N=torch.from_numpy(tokens_N - 1),
        target_N=torch.from_numpy(input_ids_BT.reshape(-1)[tokens_N]),
        response_N=torch.from_numpy(rows_N * response_width + columns_N),
        behaviour_logprobs_BR=torch.from_numpy(behaviour_BR),
        mask_BR=torch.from_numpy(mask_BR),
        advantages_B=torch.from_numpy(advantages),
        lags_BR=torch.from_numpy(lags_BR),
    )
