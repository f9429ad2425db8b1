"""Asking a policy about one micro-batch: log-probabilities, entropies, values.

Shapes: B samples of a micro-batch, R response positions.
"""
# ruff: noqa: N815 - fields that are tensors carry shape suffixes

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from trainer.step.collation import CollatedBatch

    AnyPolicy = Callable[..., tuple[Tensor, Tensor | None, Tensor | None]]


class PolicyOutputs(NamedTuple):
    """What a policy says of one micro-batch, each (B, R) in float32, 0 where nothing is trained.

    Log pi of the tokens; the entropies of the distributions they came from, in nats; the value, before each token, of
    what is still to come. The latter two are None where they were not asked for.
    """

    logprobs_BR: Tensor
    entropies_BR: Tensor | None
    values_BR: Tensor | None


def policy_outputs(
    policy: AnyPolicy, batch: CollatedBatch, *, with_entropy: bool = False, with_values: bool = False
) -> PolicyOutputs:
    """What `policy`, a `trainer.model.policy.Policy` or what calls one, says of one micro-batch."""
    outputs: tuple[Tensor, Tensor | None, Tensor | None] = policy(
        batch.input_ids_ST,
        batch.source_N,
        batch.target_N,
        batch.response_N,
        batch.mask_BR,
        position_ids_ST=batch.position_ids_ST,
        with_entropy=with_entropy,
        with_values=with_values,
    )
    return PolicyOutputs(*outputs)


@torch.no_grad()
def frozen_logprobs(policy: AnyPolicy, batch: CollatedBatch) -> Tensor:
    """The log pi (B, R) of one micro-batch, without gradient."""
    return policy_outputs(policy, batch).logprobs_BR


@torch.no_grad()
def frozen_values(policy: AnyPolicy, batch: CollatedBatch) -> Tensor:
    """The values (B, R) before the trained tokens of one micro-batch, without gradient. Raises EngineError."""
    values_BR = policy_outputs(policy, batch, with_values=True).values_BR
    assert values_BR is not None
    return values_BR
