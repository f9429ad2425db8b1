"""Old and reference log-probabilities: those of models that do not move during a step.

    old         log pi of the policy as it is before the step; the losses call it proximal
    reference   log pi of the model that the run began with

Both are computed once for each sample, before the first minibatch moves the policy, in the micro-batches of the
first pass; further passes over the batch look them up. With several passes a sample may be trained on another rank
than in the first, so ranks then exchange them.

In the first minibatch the policy has not moved yet: there the old log-probabilities are those of the training forward
pass itself, without its gradient. So one pass computes none for its first minibatch; several passes do, because the
later ones need them.

Shapes: B samples of a micro-batch, R response positions.
"""
# ruff: noqa: N815 - fields that are tensors carry shape suffixes

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from trainer.step.collation import first_pass_micro_batches
from trainer.step.forward import frozen_logprobs
from trainer.step.gathering import gather_by_position
from trainer.step.planning import has_one_pass

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor

    from rollog.settings.training import AlgorithmConfig
    from trainer.step.collation import CollatedBatch
    from trainer.step.forward import AnyPolicy
    from trainer.step.minibatches import Minibatch
    from trainer.step.ports import StepEngine, TrainingBatch

    LogprobsByPosition = Mapping[int, Tensor]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FixedLogprobs:
    """Old and reference log-probabilities (B, R) of one micro-batch; None where the loss takes none."""

    old_BR: Tensor | None = None
    reference_BR: Tensor | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BatchLogprobs:
    """Old and reference log-probabilities of a batch by position of the sample, one per response token.

    None where the algorithm needs none.
    """

    old: LogprobsByPosition | None = None
    reference: LogprobsByPosition | None = None

    def of_micro_batch(
        self, minibatch: Minibatch, positions: Sequence[int], collated: CollatedBatch
    ) -> FixedLogprobs:
        """Those of the samples at `positions`, which `collated` is made of; no old ones in the first minibatch."""
        old = None if minibatch.is_first else self.old
        return FixedLogprobs(
            old_BR=None if old is None else _stacked(old, positions, collated),
            reference_BR=None if self.reference is None else _stacked(self.reference, positions, collated),
        )


def old_and_reference_logprobs(
    batch: TrainingBatch, engine: StepEngine, algorithm: AlgorithmConfig
) -> BatchLogprobs:
    """What the loss of `algorithm` needs of both, for the samples of this rank."""
    needs_reference = algorithm.needs_reference and algorithm.kl_in == "loss"
    return BatchLogprobs(
        old=_old_logprobs(batch, engine) if algorithm.needs_proximal else None,
        reference=_logprobs_by_position(engine.reference(), batch, engine) if needs_reference else None,
    )


def _old_logprobs(batch: TrainingBatch, engine: StepEngine) -> LogprobsByPosition:
    return _logprobs_by_position(
        engine.policy, batch, engine, without_first_minibatch=has_one_pass(batch.plan)
    )


def _logprobs_by_position(
    model: AnyPolicy, batch: TrainingBatch, engine: StepEngine, *, without_first_minibatch: bool = False
) -> LogprobsByPosition:
    logprobs_of: dict[int, Tensor] = {}
    for positions, collated in first_pass_micro_batches(
        batch, engine, without_first_minibatch=without_first_minibatch
    ):
        logprobs_BR = frozen_logprobs(model, collated)
        for row, position in enumerate(positions):
            logprobs_of[position] = logprobs_BR[row, : len(batch.samples[position].token_ids)]
    return logprobs_of if has_one_pass(batch.plan) else _of_all_ranks(logprobs_of, engine)


def _of_all_ranks(logprobs_of: LogprobsByPosition, engine: StepEngine) -> LogprobsByPosition:
    own = {position: logprobs_R.cpu().double().numpy() for position, logprobs_R in logprobs_of.items()}
    return {
        position: torch.from_numpy(logprobs).float().to(engine.device)
        for position, logprobs in gather_by_position(engine, own).items()
    }


def _stacked(logprobs_of: LogprobsByPosition, positions: Sequence[int], collated: CollatedBatch) -> Tensor:
    """(B, R) in float32, 0 on the right of each response; without samples one row of zeros."""
    logprobs_BR = torch.zeros_like(collated.behaviour_logprobs_BR)
    for row, position in enumerate(positions):
        logprobs_R = logprobs_of[position]
        logprobs_BR[row, : len(logprobs_R)] = logprobs_R
    return logprobs_BR
