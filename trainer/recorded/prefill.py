"""Log-probabilities of recorded tokens, computed again by the trainer's own policy in one pass over each sequence.

What a verification asks (`consumers.verification.ports.Scorer`). Nothing is trained and nothing is sampled.

Shapes: B sequences of a micro-batch, R response positions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from safetensors.torch import load_file

from rollog.kernel.versions.adapted_layers import AdaptedLayers
from rollog.kernel.versions.files import adapter_at, merged_tensors
from schemas import float32_array
from schemas.arrays import uint8_array
from trainer.model.policy import Policy, load_model, load_weights
from trainer.step.collation import collate
from trainer.step.forward import frozen_logprobs
from trainer.step.ports import TrainingSample

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from consumers.verification.pieces import Piece
    from schemas import Float32Array

_tokens_at_once = 1024
"""Of a micro-batch, padding included, on a CPU: measured, larger ones are slower there."""


class PolicyPrefill:
    """A policy whose weights are replaced version after version. `device` None takes a GPU where there is one.

    Raises DataError where the model cannot be loaded.
    """

    def __init__(
        self,
        model_path: str,
        *,
        dtype: str,
        temperature: float,
        micro_batch_tokens: int,
        num_threads: int = 1,
        device: str | None = None,
    ) -> None:
        torch.set_num_threads(num_threads)
        self._device = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        on_cpu = self._device.type == "cpu"
        self._tokens_at_once = min(micro_batch_tokens, _tokens_at_once) if on_cpu else micro_batch_tokens
        self._model = load_model(model_path, None, dtype)
        policy = Policy(self._model, temperature).requires_grad_(requires_grad=False).eval()
        self._policy = policy.to(self._device)
        self._adapted = AdaptedLayers()

    def load(self, path: Path) -> None:
        """Replace all weights. Raises WeightsError where the file does not fit the model."""
        load_weights(self._model, path)
        adapter = adapter_at(path)
        self._adapted.apply(self._model, adapter, {} if adapter is None else merged_tensors(path, load_file))

    def logprobs(self, pieces: Sequence[Piece]) -> list[Float32Array]:
        """One entry per response token of each piece, 0 where it is not compared."""
        logprobs: list[Float32Array] = [float32_array()] * len(pieces)
        for positions in _micro_batches(pieces, self._tokens_at_once):
            batch = collate([_as_sample(pieces[position]) for position in positions]).to(self._device)
            logprobs_BR = frozen_logprobs(self._policy, batch).cpu().numpy()
            for row, position in enumerate(positions):
                logprobs[position] = logprobs_BR[row, : len(pieces[position].token_ids)]
        return logprobs


def bfloat16_noise(
    model_path: str, weights_path: Path, pieces: Sequence[Piece], *, temperature: float, max_tokens: int
) -> float:
    """How far bfloat16 is from float32 with these weights: root mean square of the first tokens, in nats.

    Both are computed on the CPU. Raises DataError and WeightsError as loading does.
    """
    chosen: list[Piece] = []
    for piece in pieces:
        chosen.append(piece)
        if sum(each.num_compared for each in chosen) >= max_tokens:
            break
    computed: list[list[Float32Array]] = []
    for dtype in ("bfloat16", "float32"):
        prefill = PolicyPrefill(
            model_path, dtype=dtype, temperature=temperature, micro_batch_tokens=_tokens_at_once, device="cpu"
        )
        prefill.load(weights_path)
        computed.append(prefill.logprobs(chosen))
    differences = [
        (coarse - fine)[piece.is_compared].astype(np.float64)
        for piece, coarse, fine in zip(chosen, *computed, strict=True)
    ]
    return float(np.sqrt(np.mean(np.concatenate(differences) ** 2)))


def _micro_batches(pieces: Sequence[Piece], most_tokens: int) -> Iterator[list[int]]:
    """Positions of pieces, the shortest first, so that little is padded; one over `most_tokens` comes alone."""
    batch: list[int] = []
    for position in sorted(range(len(pieces)), key=lambda index: pieces[index].num_tokens):
        if batch and (len(batch) + 1) * pieces[position].num_tokens > most_tokens:
            yield batch
            batch = []
        batch.append(position)
    if batch:
        yield batch


def _as_sample(piece: Piece) -> TrainingSample:
    return TrainingSample(
        prompt_token_ids=piece.prompt_token_ids,
        token_ids=piece.token_ids,
        behaviour_logprobs=piece.recorded,
        loss_mask=uint8_array(piece.is_compared),
        advantage=0.0,
    )
