"""Log-probabilities of one sequence under the policy as it is: what others compare theirs with.

Shapes: B sequences, R response positions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from schemas import float32_array, int32_array
from schemas.arrays import uint8_array
from trainer.step.collation import collate
from trainer.step.forward import frozen_logprobs
from trainer.step.ports import TrainingSample

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trainer.step.ports import StepEngine


def sequence_logprobs(engine: StepEngine, token_ids: Sequence[int]) -> tuple[float, ...]:
    """Log pi of each token after the first, in nats, at the policy's temperature; every rank computes all of them."""
    num_responses = len(token_ids) - 1
    sample = TrainingSample(
        prompt_token_ids=int32_array(token_ids[:1]),
        token_ids=int32_array(token_ids[1:]),
        behaviour_logprobs=float32_array([0.0] * num_responses),
        loss_mask=uint8_array(np.ones(num_responses)),
        advantage=0.0,
    )
    logprobs_BR = frozen_logprobs(engine.policy, collate([sample]).to(engine.device))
    return tuple(logprobs_BR[0].tolist())
