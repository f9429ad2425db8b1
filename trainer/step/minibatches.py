"""Minibatches: what one optimizer step works on, as one rank sees it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from trainer.step.losses.aggregation import Denominators
from trainer.step.sequences import sample_key

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rollog.settings.training import AlgorithmConfig
    from trainer.step.ports import TrainingBatch


@dataclass(frozen=True, slots=True, kw_only=True)
class Minibatch:
    """One optimizer step's work.

    `micro_batches` are those of one rank, each the positions of its sequences in the batch; `denominators` count the
    samples of all ranks. `is_first` where no optimizer step of this training step comes before it.
    """

    micro_batches: tuple[tuple[int, ...], ...]
    denominators: Denominators
    is_first: bool


def rank_minibatches(batch: TrainingBatch, rank: int, algorithm: AlgorithmConfig) -> list[Minibatch]:
    """A batch as `rank` trains it, in the order of its plan; every rank gets equally many micro-batches."""
    tokens_per_sample = algorithm.response_budget if algorithm.aggregation == "sequence_sum" else 1
    minibatches: list[Minibatch] = []
    for index in sorted({planned.minibatch for planned in batch.plan}):
        of_all_ranks = [planned for planned in batch.plan if planned.minibatch == index]
        positions = [position for planned in of_all_ranks for position in planned.positions]
        minibatches.append(
            Minibatch(
                micro_batches=tuple(planned.positions for planned in of_all_ranks if planned.rank == rank),
                denominators=_denominators(batch, positions, tokens_per_sample),
                is_first=not minibatches,
            )
        )
    return minibatches


def _denominators(batch: TrainingBatch, positions: Sequence[int], tokens_per_sample: int) -> Denominators:
    num_trained = {
        position: int(np.count_nonzero(batch.samples[position].loss_mask)) for position in positions
    }
    return Denominators(
        num_tokens=sum(num_trained.values()),
        num_samples=len({sample_key(batch, position) for position, count in num_trained.items() if count}),
        tokens_per_sample=tokens_per_sample,
    )
