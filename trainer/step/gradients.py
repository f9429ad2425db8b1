"""One training step's gradients, independent of the engine that applies them.

Shapes: B samples of a micro-batch, R response positions.
"""
# ruff: noqa: N815 - fields that are tensors carry shape suffixes

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import groupby
from typing import TYPE_CHECKING

import numpy as np
import torch

from trainer.model.policy import frozen_logprobs, policy_outputs
from trainer.step.advantages import turn_advantages
from trainer.step.algorithms import extreme_tokens, token_losses
from trainer.step.collation import collate, collated_once
from trainer.step.critic import with_estimates
from trainer.step.losses.aggregation import Denominators, aggregate
from trainer.step.losses.penalties import divergences
from trainer.step.losses.policy import Tokens
from trainer.step.losses.values import Values
from trainer.step.off_policy import RatioSums, ratio_sums

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from torch import Tensor

    from rollog.settings.training import AlgorithmConfig
    from trainer.engines.ports import TrainingBatch, TrainingSample
    from trainer.step.collation import CollatedBatch
    from trainer.step.critic import Gather

_off_policy = ("effective_sample_size", "divergence")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Minibatch:
    """One optimizer step's work: all its samples, and the micro-batches of one rank, padded or packed."""

    micro_batches: tuple[tuple[TrainingSample, ...], ...]
    denominators: Denominators
    packing: bool = False


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Anchors:
    """Log-probabilities of one micro-batch under policies that a training step does not move; None: not needed.

    `proximal_BR` is also None in the first minibatch of a step: there the policy itself is the proximal one.
    """

    proximal_BR: Tensor | None = None
    reference_BR: Tensor | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StepWork:
    """What one rank does in a training step: its minibatches, the anchors of each, and figures for the statistics."""

    minibatches: list[Minibatch]
    anchors: list[list[Anchors]]
    statistics: dict[str, float]


def step_work(
    policy: torch.nn.Module,
    reference: torch.nn.Module | None,
    batch: TrainingBatch,
    algorithm: AlgorithmConfig,
    *,
    rank: int,
    device: torch.device,
    gather: Gather,
    packing: bool = False,
) -> StepWork:
    """Everything of a training step that is computed before its first minibatch.

    Args:
        policy: as it is before the step.
        reference: the model that the run began with, where `algorithm.needs_reference`.
        batch: of all ranks.
        algorithm: says what is needed.
        rank: whose work it is.
        device: where the models are.
        gather: puts the entries of all ranks together.
        packing: whether samples share rows of a forward pass.
    """
    statistics: dict[str, float] = {}
    if reference is not None and algorithm.kl_in == "reward":
        divergence_of = gather(
            behaviour_divergences(reference, batch, rank, algorithm, device=device, packing=packing)
        )
        batch = less_divergence(batch, divergence_of, algorithm)
        statistics["reward_divergence"] = sum(
            divergence_of[position] for position in sorted(divergence_of)
        ) / max(len(divergence_of), 1)
    if algorithm.needs_values:
        batch, of_values = with_estimates(
            policy, batch, algorithm, rank=rank, device=device, gather=gather, packing=packing
        )
        statistics |= of_values
    work = minibatches(batch, rank, algorithm, packing=packing)
    anchors = anchors_of(policy, reference, work, algorithm, device=device)
    return StepWork(minibatches=work, anchors=anchors, statistics=statistics)


def minibatches(
    batch: TrainingBatch, rank: int, algorithm: AlgorithmConfig, *, packing: bool = False
) -> list[Minibatch]:
    """A batch as `rank` trains it, in the order of its plan."""
    tokens_per_sequence = algorithm.response_budget if algorithm.aggregation == "sequence_sum" else 1
    found = []
    for number in sorted({part.minibatch for part in batch.plan}):
        parts = [part for part in batch.plan if part.minibatch == number]
        everyone = [batch.samples[position] for part in parts for position in part.positions]
        own = tuple(
            tuple(batch.samples[position] for position in part.positions)
            for part in parts
            if part.rank == rank
        )
        denominators = _denominators(everyone, tokens_per_sequence)
        found.append(Minibatch(micro_batches=own, denominators=denominators, packing=packing))
    return found


def anchors_of(
    policy: torch.nn.Module,
    reference: torch.nn.Module | None,
    work: Sequence[Minibatch],
    algorithm: AlgorithmConfig,
    *,
    device: torch.device,
) -> list[list[Anchors]]:
    """The anchors of every micro-batch, computed before the first minibatch of a step is trained.

    Args:
        policy: as it is before the step.
        reference: the model that the run began with, where `algorithm.needs_reference`.
        work: the minibatches of this rank.
        algorithm: says what is needed.
        device: where the models are.
    """
    in_loss = reference if algorithm.kl_in == "loss" else None

    def anchors(samples: Sequence[TrainingSample], *, is_first: bool, packing: bool) -> Anchors:
        needs_proximal = algorithm.needs_proximal and not is_first
        if not needs_proximal and in_loss is None:
            return Anchors()
        batch = collate(samples, packing=packing).to(device)
        return Anchors(
            proximal_BR=frozen_logprobs(policy, batch) if needs_proximal else None,
            reference_BR=None if in_loss is None else frozen_logprobs(in_loss, batch),
        )

    return [
        [
            anchors(samples, is_first=number == 0, packing=minibatch.packing)
            for samples in minibatch.micro_batches
        ]
        for number, minibatch in enumerate(work)
    ]


def accumulate(
    policy: torch.nn.Module,
    backward: Callable[[Tensor], object],
    minibatch: Minibatch,
    algorithm: AlgorithmConfig,
    *,
    anchors: Sequence[Anchors],
    device: torch.device,
    scale: float = 1.0,
) -> tuple[float, RatioSums]:
    """Add the gradient of a minibatch; returns this rank's share of the loss and its statistics.

    Args:
        policy: called for log-probabilities.
        backward: called with each micro-batch's share of the loss, times `scale`.
        minibatch: what to do.
        algorithm: names the loss.
        anchors: one per micro-batch, from `anchors_of`.
        device: where the policy is.
        scale: undoes an engine's averaging over ranks.
    """
    loss, sums = 0.0, RatioSums()
    for samples, anchor in zip(minibatch.micro_batches, anchors, strict=True):
        batch = collate(samples, packing=minibatch.packing).to(device)
        losses_BR, measured = _micro_batch_losses(policy, batch, algorithm, anchor)
        share = aggregate(losses_BR, batch.mask_BR, algorithm.aggregation, minibatch.denominators)
        backward(share * scale if scale != 1.0 else share)
        loss += share.item()
        sums += measured
    return loss, sums


def behaviour_divergences(
    reference: torch.nn.Module,
    batch: TrainingBatch,
    rank: int,
    algorithm: AlgorithmConfig,
    *,
    device: torch.device,
    packing: bool = False,
) -> dict[int, float]:
    """How far the behaviour policy's responses are from the reference model: a sum over tokens for each position.

    Only for the samples of this rank. The estimate is `algorithm.kl_estimator` of log-probabilities of the record.
    """
    found: dict[int, float] = {}
    for positions, collated in collated_once(batch, rank, device=device, packing=packing):
        sums_B = divergences(
            collated.behaviour_logprobs_BR,
            frozen_logprobs(reference, collated),
            collated.mask_BR,
            algorithm.kl_estimator,
        ).sum(dim=1)
        found.update(zip(positions, sums_B.tolist(), strict=False))
    return found


def less_divergence(
    batch: TrainingBatch, divergence_of: Mapping[int, float], algorithm: AlgorithmConfig
) -> TrainingBatch:
    """The batch with `kl_coefficient` times each sample's divergence taken off its reward, and advantages from that.

    The response counts as one action (RLOO, arXiv 2402.14740): all its tokens share its divergence. Of several turns
    with rewards of their own the last one bears it.
    """
    rewards = [
        _less_at_the_end(sample, algorithm.kl_coefficient * divergence_of[position])
        for position, sample in enumerate(batch.samples)
    ]
    of_group = groupby(zip(batch.samples, rewards, strict=True), key=lambda pair: pair[0].group)
    groups = [[turns for _, turns in members] for _, members in of_group]
    advantages = [each for group in turn_advantages(groups, algorithm) for each in group]
    return replace(
        batch,
        samples=tuple(
            replace(
                sample,
                reward=sum(turns),
                advantage=of_turns[0],
                turn_rewards=turns if sample.turn_rewards else (),
                turn_advantages=of_turns if sample.turn_rewards else (),
            )
            for sample, turns, of_turns in zip(batch.samples, rewards, advantages, strict=True)
        ),
    )


def _less_at_the_end(sample: TrainingSample, amount: float) -> tuple[float, ...]:
    """The rewards of the sample's turns, of one where it is one whole, the last of them smaller."""
    *earlier, last = sample.turn_rewards or (sample.reward,)
    return (*earlier, last - amount)


def step_statistics(sums: Sequence[RatioSums]) -> dict[str, float]:
    """Figures over all minibatches, and how far the first one, before any update, is from the behaviour policy.

    The latter, called `first_...`, say how off-policy the batch itself was: they are what alpha is controlled by. They
    are told apart into the mismatch of inference engine and trainer, and staleness, where versions are known.
    """
    if not sums:
        return {}
    total, first = sum(sums, start=RatioSums()), sums[0].summary()
    measured = {f"first_{name}": first[name] for name in _off_policy if name in first}
    return total.summary() | measured | {"first_log_ratio_max": sums[0].log_ratio_max} | sums[0].mismatch()


def _micro_batch_losses(
    policy: torch.nn.Module, batch: CollatedBatch, algorithm: AlgorithmConfig, anchor: Anchors
) -> tuple[Tensor, RatioSums]:
    """The loss of every token, and statistics."""
    logprobs_BR, entropies_BR, values_BR = policy_outputs(
        policy,
        batch,
        with_entropy=algorithm.entropy_coefficient > 0,
        with_values=algorithm.needs_values,
    )
    tokens = Tokens(
        logprobs_BR=logprobs_BR,
        behaviour_logprobs_BR=batch.behaviour_logprobs_BR,
        advantages_BR=batch.advantages_BR,
        mask_BR=batch.mask_BR,
    )
    log_ratios_BR = tokens.log_ratios().detach()
    extreme_BR = extreme_tokens(log_ratios_BR, batch.mask_BR, algorithm)
    losses = token_losses(
        tokens,
        algorithm,
        extreme_BR=extreme_BR,
        proximal_logprobs_BR=logprobs_BR.detach() if anchor.proximal_BR is None else anchor.proximal_BR,
        reference_logprobs_BR=anchor.reference_BR,
        entropies_BR=entropies_BR,
        values=None if values_BR is None else _values(values_BR, batch),
    )
    return losses.losses_BR, ratio_sums(
        log_ratios_BR,
        batch.mask_BR,
        losses.clipped_BR,
        extreme_BR=extreme_BR,
        lags_BR=batch.lags_BR,
        entropies_BR=entropies_BR,
        reference_divergences_BR=None
        if anchor.reference_BR is None
        else divergences(logprobs_BR.detach(), anchor.reference_BR, batch.mask_BR, "k3"),
        value_losses_BR=losses.value_losses_BR,
    )


def _values(values_BR: Tensor, batch: CollatedBatch) -> Values:
    """Without samples, and so without estimates, there is nothing to learn, but every rank does the same work."""
    nothing_BR = torch.zeros_like(values_BR)
    return Values(
        values_BR=values_BR,
        returns_BR=nothing_BR if batch.returns_BR is None else batch.returns_BR,
        old_values_BR=nothing_BR if batch.values_BR is None else batch.values_BR,
    )


def _denominators(samples: Iterable[TrainingSample], tokens_per_sequence: int) -> Denominators:
    trained = [int(np.count_nonzero(sample.loss_mask)) for sample in samples]
    return Denominators(
        num_tokens=sum(trained),
        num_sequences=sum(count > 0 for count in trained),
        tokens_per_sequence=tokens_per_sequence,
    )
