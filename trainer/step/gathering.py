"""What ranks tell each other in a step: flat arrays of float64.

No object is pickled. Integers up to 2^53, float32 and float64 come through bit for bit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from trainer.step.off_policy import RatioSums

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from trainer.step.ports import Float64Array, StepEngine


def gather_by_position(engine: StepEngine, arrays: Mapping[int, Float64Array]) -> dict[int, Float64Array]:
    """The arrays of all ranks, by the position of their sample in the batch; a rank brings those of its own samples.

    Sent are the number of entries, positions, lengths, and the arrays one after another.
    """
    positions, lengths = list(arrays), [array.size for array in arrays.values()]
    own = np.concatenate([_float64([len(arrays), *positions, *lengths]), *arrays.values()])
    gathered: dict[int, Float64Array] = {}
    for numbers in engine.gather(own):
        count = int(numbers[0])
        of_rank = numbers[1 : 1 + count].astype(np.int64).tolist()
        ends = np.cumsum(numbers[1 + count : 1 + 2 * count].astype(np.int64))
        gathered.update(zip(of_rank, np.split(numbers[1 + 2 * count :], ends[:-1]), strict=False))
    return gathered


def sum_over_ranks(
    shares: Sequence[tuple[float, RatioSums]], engine: StepEngine
) -> tuple[tuple[float, ...], list[RatioSums]]:
    """The loss and the statistics of each minibatch, from every rank's share; the same on all ranks.

    Ranks are added up in their order, so that the sum does not depend on who is first.
    """
    if not shares:
        return (), []
    own = _float64(number for loss, sums in shares for number in (loss, *sums.to_numbers()))
    of_ranks = [numbers.reshape(len(shares), -1).tolist() for numbers in engine.gather(own)]
    losses, ratio_sums = [], []
    for rows in zip(*of_ranks, strict=True):
        losses.append(sum(row[0] for row in rows))
        ratio_sums.append(sum((RatioSums.of_numbers(row[1:]) for row in rows), start=RatioSums()))
    return tuple(losses), ratio_sums


def _float64(values: Iterable[float]) -> Float64Array:
    return np.array(list(values), dtype=np.float64)
