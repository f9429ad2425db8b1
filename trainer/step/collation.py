"""From samples to tensors.

Shapes: B sequences of a micro-batch, its samples where each has one; S rows of a forward pass, T positions of a row, R
response positions, N trained tokens. Padded, every sequence has a row and is padded on the right, so positions count
from 0 without gaps and a causal model needs no attention mask: nothing real ever looks at padding. Packed, sequences
share rows; positions restart at 0 with each one, which is how a model knows to keep them apart, and with the padding at
the end of a row.
"""
# ruff: noqa: N815 - fields that are tensors carry shape suffixes

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from schemas import float32_array
from trainer.step.packing import pack_rows
from trainer.step.planning import first_pass

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy.typing as npt

    from trainer.step.ports import StepEngine, TrainingBatch, TrainingSample


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CollatedBatch:
    """One micro-batch.

    `source_N` are places in the flattened (S, T) grid whose logits predict trained tokens, `target_N` these
    tokens, `response_N` their places in the flattened (B, R) grid. Tokens whose loss mask is 0 are in none.
    `sample_tokens_B` are the trained tokens of the whole sample that a sequence is of.
    `lags_BR` is -1 where the lag of a token is not known. `position_ids_ST` is None where positions simply count,
    `values_BR` and `returns_BR` are None without a critic.
    """

    input_ids_ST: Tensor
    position_ids_ST: Tensor | None
    source_N: Tensor
    target_N: Tensor
    response_N: Tensor
    behaviour_logprobs_BR: Tensor
    mask_BR: Tensor
    advantages_BR: Tensor
    lags_BR: Tensor
    sample_tokens_B: Tensor
    values_BR: Tensor | None = None
    returns_BR: Tensor | None = None

    def to(self, device: torch.device) -> CollatedBatch:
        """The same micro-batch on `device`."""
        tensors: dict[str, Tensor | None] = {name: getattr(self, name) for name in self.__slots__}
        moved = {name: tensor.to(device) for name, tensor in tensors.items() if tensor is not None}
        return replace(self, **moved)


def collate(
    samples: Sequence[TrainingSample], *, packing: bool = False, pad_token_id: int = 0
) -> CollatedBatch:
    """Pad or pack samples to a micro-batch; without samples, one sequence of padding that trains nothing."""
    num_samples = max(len(samples), 1)
    response_width = max((len(sample.token_ids) for sample in samples), default=1) or 1
    input_ids_ST, position_ids_ST, begins_B = _rows(samples, packing=packing, pad_token_id=pad_token_id)
    behaviour_BR = np.zeros((num_samples, response_width), dtype=np.float32)
    mask_BR = np.zeros((num_samples, response_width), dtype=np.bool_)
    advantages_BR = np.zeros((num_samples, response_width), dtype=np.float32)
    lags_BR = np.full((num_samples, response_width), -1, dtype=np.int64)
    starts_B = np.zeros(num_samples, dtype=np.int64)
    sample_tokens_B = np.zeros(num_samples, dtype=np.int64)
    for row, sample in enumerate(samples):
        length = len(sample.token_ids)
        behaviour_BR[row, :length] = sample.behaviour_logprobs
        mask_BR[row, :length] = sample.loss_mask != 0
        advantages_BR[row, :length] = _advantages(sample)
        if sample.lags is not None:
            lags_BR[row, :length] = sample.lags
        starts_B[row] = begins_B[row] + len(sample.prompt_token_ids)
        sample_tokens_B[row] = _num_sample_tokens(sample)
    samples_N, columns_N = np.nonzero(mask_BR)
    tokens_N = starts_B[samples_N] + columns_N
    return CollatedBatch(
        input_ids_ST=torch.from_numpy(input_ids_ST),
        position_ids_ST=None if position_ids_ST is None else torch.from_numpy(position_ids_ST),
        source_N=torch.from_numpy(tokens_N - 1),
        target_N=torch.from_numpy(input_ids_ST.reshape(-1)[tokens_N]),
        response_N=torch.from_numpy(samples_N * response_width + columns_N),
        behaviour_logprobs_BR=torch.from_numpy(behaviour_BR),
        mask_BR=torch.from_numpy(mask_BR),
        advantages_BR=torch.from_numpy(advantages_BR),
        lags_BR=torch.from_numpy(lags_BR),
        sample_tokens_B=torch.from_numpy(sample_tokens_B),
        **_estimates(samples, mask_BR.shape),
    )


def collated_micro_batch(batch: TrainingBatch, positions: Sequence[int], engine: StepEngine) -> CollatedBatch:
    """The samples at `positions` as `engine` takes them: padded or packed, on its device."""
    samples = [batch.samples[position] for position in positions]
    return collate(samples, packing=engine.packing).to(engine.device)


def first_pass_micro_batches(
    batch: TrainingBatch, engine: StepEngine, *, without_first_minibatch: bool = False
) -> Iterator[tuple[tuple[int, ...], CollatedBatch]]:
    """The micro-batches of this rank with their positions, each sample once however many passes are planned."""
    first_minibatch = min((planned.minibatch for planned in batch.plan), default=0)
    for planned in first_pass(batch.plan):
        is_left_out = without_first_minibatch and planned.minibatch == first_minibatch
        if planned.rank == engine.rank and not is_left_out:
            yield planned.positions, collated_micro_batch(batch, planned.positions, engine)


def _advantages(sample: TrainingSample) -> float | npt.NDArray[np.float32]:
    """Per response token, or one for all; what masked tokens have does not matter."""
    if sample.estimates is not None:
        return sample.estimates.advantages
    if sample.turn_advantages:
        return float32_array(sample.turn_advantages)[sample.turn_of_tokens]
    return sample.advantage


def _num_sample_tokens(sample: TrainingSample) -> int:
    if sample.num_sample_tokens is not None:
        return sample.num_sample_tokens
    return int(np.count_nonzero(sample.loss_mask))


def _estimates(samples: Sequence[TrainingSample], shape: tuple[int, ...]) -> dict[str, Tensor]:
    """Values and returns (B, R) where a critic has made them."""
    if not samples or any(sample.estimates is None for sample in samples):
        return {}
    arrays = {name: np.zeros(shape, dtype=np.float32) for name in ("values", "returns")}
    for row, sample in enumerate(samples):
        for name, array_BR in arrays.items():
            array_BR[row, : len(sample.token_ids)] = getattr(sample.estimates, name)
    return {f"{name}_BR": torch.from_numpy(array_BR) for name, array_BR in arrays.items()}


def _rows(
    samples: Sequence[TrainingSample], *, packing: bool, pad_token_id: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64] | None, list[int]]:
    """Token ids (S, T), packed also positions (S, T), and the place of each sample in the flattened grid."""
    lengths = [sample.num_tokens for sample in samples]
    width = max(max(lengths, default=1), 1)
    rows = pack_rows(lengths, width) if packing else [[index] for index in range(len(samples))]
    input_ids_ST = np.full((max(len(rows), 1), width), pad_token_id, dtype=np.int64)
    position_ids_ST = np.zeros_like(input_ids_ST)
    begins_B = [0] * len(samples)
    for row, members in enumerate(rows):
        column = 0
        for index in members:
            sample, end = samples[index], column + lengths[index]
            prompt_end = column + len(sample.prompt_token_ids)
            input_ids_ST[row, column:prompt_end] = sample.prompt_token_ids
            input_ids_ST[row, prompt_end:end] = sample.token_ids
            position_ids_ST[row, column:end] = np.arange(end - column)
            begins_B[index] = row * width + column
            column = end
        position_ids_ST[row, column:] = np.arange(width - column)
    return input_ids_ST, position_ids_ST if packing else None, begins_B
