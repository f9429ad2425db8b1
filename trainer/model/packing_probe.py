"""Whether a model keeps samples apart that share a row: found out on three short ones, before anything is trained."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from rollog.kernel.errors import DataError
from schemas.arrays import float32_array, int32_array, uint8_array
from trainer.model.sharing import gather_when_called, unshared, whole_shape
from trainer.step.collation import collate
from trainer.step.forward import frozen_logprobs
from trainer.step.ports import TrainingSample

if TYPE_CHECKING:
    from torch import Tensor

    from trainer.model.policy import Policy
    from trainer.model.sharing import Sharing

_num_tokens = (9, 5, 4)
"""The second and the third share a row as wide as the first."""
_tolerance = {torch.float32: 1e-3, torch.bfloat16: 0.1}


def check_packing(policy: Policy, sharing: Sharing = unshared) -> None:
    """Raise DataError where a packed sample has other log-probabilities than alone, or depends on its neighbour."""
    with gather_when_called(policy, sharing):
        _check_packing(policy)


def _check_packing(policy: Policy) -> None:
    embeddings: Any = policy.model.get_input_embeddings()
    vocabulary = whole_shape(embeddings.weight)[0]
    samples = [_sample(length, begin, vocabulary) for begin, length in enumerate(_num_tokens)]
    alone = [_logprobs(policy, [sample], packing=False)[0] for sample in samples]
    try:
        packed = _logprobs(policy, samples, packing=True)
        other = replace(samples[1], token_ids=int32_array((samples[1].token_ids + 1) % vocabulary))
        beside_another = _logprobs(policy, [samples[0], other, samples[2]], packing=True)
    except TypeError as error:
        raise _refusal(policy, f"it takes no positions: {error}") from error
    apart = max(
        float((logprobs_R[: len(expected_R)] - expected_R).abs().max())
        for logprobs_R, expected_R in zip(packed, alone, strict=True)
    )
    if apart > _tolerance[next(policy.parameters()).dtype]:
        raise _refusal(policy, f"packed, its log-probabilities are off by {apart:.3g}")
    if not torch.equal(packed[2], beside_another[2]):
        raise _refusal(policy, "a sample attends to its neighbour")


def _refusal(policy: Policy, what: str) -> DataError:
    return DataError(
        f"trainer.packing = true: {type(policy.model).__name__} does not keep samples of one row apart ({what}); set "
        "trainer.packing = false"
    )


def _logprobs(policy: Policy, samples: list[TrainingSample], *, packing: bool) -> list[Tensor]:
    batch = collate(samples, packing=packing).to(next(policy.parameters()).device)
    return list(frozen_logprobs(policy, batch))


def _sample(num_tokens: int, begin: int, vocabulary: int) -> TrainingSample:
    tokens = int32_array((7 * np.arange(num_tokens) + 3 * begin + 1) % vocabulary)
    return TrainingSample(
        prompt_token_ids=tokens[:1],
        token_ids=tokens[1:],
        behaviour_logprobs=float32_array(np.zeros(num_tokens - 1)),
        loss_mask=uint8_array(np.ones(num_tokens - 1)),
        advantage=0.0,
    )
