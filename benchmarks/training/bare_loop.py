"""The ideal that the trainer's engine is measured against: a training loop in bare PyTorch, straight from the formula.

    l = -min(r A, [r]_(1-low)^(1+high) A)       r = exp(log pi - mu)

summed over the response tokens of a minibatch, divided by their number, AdamW with clipped gradients, one process. It
pads each micro-batch of a given plan and takes logits only where a response token is predicted, as a good loop of one's
own would; it keeps no statistics, checks nothing, and may give other bits from run to run.
"""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from trainer.step.optimizer import adamw_settings
from trainer.step.schedule import next_rates

if TYPE_CHECKING:
    from collections.abc import Sequence

    from transformers import PreTrainedModel

    from trainer.step.ports import StepSettings, TrainingBatch, TrainingSample


class BareLoop:
    """Trains `model` in place."""

    def __init__(self, model: PreTrainedModel, settings: StepSettings, temperature: float) -> None:
        self._parts: Any = model
        self._settings = settings
        self._temperature = temperature
        self._parameters = [each for each in model.parameters() if each.requires_grad]
        self._optimizer = torch.optim.AdamW(
            self._parameters, lr=0.0, **adamw_settings(settings.optimizer), fused=True
        )
        self._steps_taken = 0

    def train_step(self, batch: TrainingBatch) -> list[float]:
        """One optimizer step per minibatch of the plan; gives their losses."""
        by_minibatch = groupby(batch.plan, key=lambda part: part.minibatch)
        minibatches = [
            [[batch.samples[position] for position in part.positions] for part in parts]
            for _, parts in by_minibatch
        ]
        rates = next_rates(self._steps_taken, len(minibatches), self._settings)
        losses = [self._optimizer_step(parts, rate) for parts, rate in zip(minibatches, rates, strict=True)]
        self._steps_taken += len(rates)
        return losses

    def _optimizer_step(self, parts: Sequence[Sequence[TrainingSample]], rate: float) -> float:
        num_tokens = sum(len(sample.token_ids) for part in parts for sample in part)
        total = 0.0
        for part in parts:
            loss = self._loss(part) / num_tokens
            loss.backward()  # type: ignore[no-untyped-call]
            total += loss.item()
        nn.utils.clip_grad_norm_(self._parameters, self._settings.optimizer.max_gradient_norm)
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        self._optimizer.step()
        self._optimizer.zero_grad()
        return total

    def _loss(self, samples: Sequence[TrainingSample]) -> Tensor:
        algorithm = self._settings.algorithm
        rows = [_tensor(sample.prompt_token_ids, sample.token_ids) for sample in samples]
        input_ids_BT = pad_sequence(rows, batch_first=True)
        places_N = torch.cat([_places(number, sample) for number, sample in enumerate(samples)], dim=1)
        hidden_BTH = self._parts.model(input_ids=input_ids_BT, use_cache=False).last_hidden_state
        logits_NV = self._parts.lm_head(hidden_BTH[places_N[0], places_N[1] - 1]).float() / self._temperature
        logprobs_N = torch.log_softmax(logits_NV, dim=1).gather(
            1, input_ids_BT[places_N[0], places_N[1]][:, None]
        )[:, 0]
        behaviour_N = torch.from_numpy(np.concatenate([sample.behaviour_logprobs for sample in samples]))
        advantages_N = torch.tensor([sample.advantage for sample in samples])[places_N[0]]
        ratios_N = (logprobs_N - behaviour_N).exp()
        clipped_N = ratios_N.clamp(1 - algorithm.clip_low, 1 + algorithm.clip_high)
        return -torch.minimum(ratios_N * advantages_N, clipped_N * advantages_N).sum()


def _tensor(*parts: np.ndarray[Any, Any]) -> Tensor:
    return torch.from_numpy(np.concatenate(parts).astype(np.int64))


def _places(number: int, sample: TrainingSample) -> Tensor:
    """Row and column of each response token, (2, tokens)."""
    columns = torch.arange(len(sample.token_ids)) + len(sample.prompt_token_ids)
    return torch.stack([torch.full_like(columns, number), columns])
