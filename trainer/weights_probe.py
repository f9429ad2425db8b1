"""The probe of a version: a short sequence with the log-probabilities that the trainer computes for it.

It goes into the notice. A worker compares it with its own engine after its first load: kernels that lay weights out in
their own way have been seen to load without an error and to compute nonsense.
"""

from __future__ import annotations

import json
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from schemas.weights import WeightsProbe

if TYPE_CHECKING:
    from trainer.engines.ports import TrainingEngine

num_probe_tokens = 32
_seed = 0
"""Of the tokens: the same in every run with this vocabulary."""


def probe_of(engine: TrainingEngine) -> WeightsProbe | None:
    """The probe of the engine's weights as they are; None for an engine without a vocabulary. All ranks take part."""
    token_ids = _tokens(engine.describe().model_config_json)
    if not token_ids:
        return None
    return WeightsProbe(token_ids=token_ids, logprobs=engine.sequence_logprobs(token_ids))


@lru_cache(maxsize=4)
def _tokens(model_config_json: str) -> tuple[int, ...]:
    """Random tokens of the vocabulary: any text would do, and no tokenizer is needed."""
    config: dict[str, Any] = json.loads(model_config_json)
    vocabulary = config.get("vocab_size") or config.get("text_config", {}).get("vocab_size") or 0
    if not vocabulary:
        return ()
    return tuple(np.random.default_rng(_seed).integers(0, vocabulary, num_probe_tokens).tolist())
