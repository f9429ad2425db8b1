"""Batch planning: which samples of a batch one optimizer step, one rank and one forward pass take together.

Pure and independent of library versions: the order comes from sha256 of seed and group, never from a random
number generator. A plan names every position of the training order once in each pass over the batch.

    batch of groups -> passes (each deals the groups again)
                    -> minibatches (whole groups, one optimizer step each)
                    -> ranks (balanced in tokens)
                    -> micro-batches (samples of similar length, or packed into rows; padded size bounded)

Every rank gets the same number of micro-batches per minibatch, empty ones where it has too few samples, because
ranks meet in collective operations.
"""

from __future__ import annotations

import hashlib
from itertools import chain, pairwise
from typing import TYPE_CHECKING

from schemas import MicroBatch
from trainer.step.packing import num_padded_tokens, pack_rows

if TYPE_CHECKING:
    from collections.abc import Sequence


def step_seed(run_seed: int, version: int) -> int:
    """The seed of the training step that makes `version`: a non-negative 63-bit number."""
    digest = hashlib.sha256(f"rollog-step/{run_seed}/{version}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def plan_step(
    group_lengths: Sequence[Sequence[int]],
    *,
    num_minibatches: int,
    world_size: int,
    micro_batch_tokens: int,
    seed: int,
    packing: bool = False,
    num_epochs: int = 1,
) -> tuple[MicroBatch, ...]:
    """The micro-batches of one training step, in the order in which each rank runs them.

    Args:
        group_lengths: per group, in training order, the prompt plus response tokens of its samples.
        num_minibatches: optimizer steps of a pass; fewer when there are fewer groups.
        world_size: number of ranks.
        micro_batch_tokens: most tokens of one forward pass, padding included; a single longer sample is alone.
        seed: decides which groups share a minibatch.
        packing: samples share rows, so a micro-batch takes more of them.
        num_epochs: passes over the batch.
    """
    positions = _positions_by_group(group_lengths)
    lengths = list(chain.from_iterable(group_lengths))
    plan: list[MicroBatch] = []
    dealt = chain.from_iterable(
        _deal_groups(len(group_lengths), num_minibatches, str(seed) if epoch == 0 else f"{seed}.{epoch}")
        for epoch in range(num_epochs)
    )
    for minibatch, groups in enumerate(dealt):
        members = [position for group in groups for position in positions[group]]
        shares = _balance(members, lengths, world_size)
        cut = _cut_packed if packing else _cut
        cuts = [cut(share, lengths, micro_batch_tokens) for share in shares]
        for rank, micro_batches in enumerate(_equally_many(cuts)):
            plan.extend(
                MicroBatch(minibatch=minibatch, rank=rank, positions=tuple(of_samples))
                for of_samples in micro_batches
            )
    return tuple(plan)


def first_pass(plan: Sequence[MicroBatch]) -> tuple[MicroBatch, ...]:
    """The micro-batches of all ranks until every position has been named once."""
    first: list[MicroBatch] = []
    named: set[int] = set()
    for minibatch in sorted({planned.minibatch for planned in plan}):
        micro_batches = [planned for planned in plan if planned.minibatch == minibatch]
        positions = {position for planned in micro_batches for position in planned.positions}
        if named & positions:
            break
        named |= positions
        first += micro_batches
    return tuple(first)


def has_one_pass(plan: Sequence[MicroBatch]) -> bool:
    """Whether the plan names every position once."""
    return len(first_pass(plan)) == len(plan)


def padding_share(plan: Sequence[MicroBatch], lengths: Sequence[int], *, packing: bool = False) -> float:
    """The share of a plan's forward tokens that is padding."""
    micro_batches = [
        [lengths[position] for position in planned.positions] for planned in plan if planned.positions
    ]
    padded = sum(num_padded_tokens(of_samples, packing=packing) for of_samples in micro_batches)
    return 1.0 - sum(map(sum, micro_batches)) / padded if padded else 0.0


def _positions_by_group(group_lengths: Sequence[Sequence[int]]) -> list[range]:
    positions, start = [], 0
    for group in group_lengths:
        positions.append(range(start, start + len(group)))
        start += len(group)
    return positions


def _deal_groups(num_groups: int, num_minibatches: int, seed: str) -> list[list[int]]:
    """Shuffled groups in at most `num_minibatches` parts whose sizes differ by one at most."""
    order = sorted(range(num_groups), key=lambda group: hashlib.sha256(f"{seed}/{group}".encode()).digest())
    num_parts = min(num_minibatches, num_groups)
    bounds = [part * num_groups // num_parts for part in range(num_parts + 1)] if num_parts else [0]
    return [order[start:end] for start, end in pairwise(bounds)]


def _balance(members: Sequence[int], lengths: Sequence[int], world_size: int) -> list[list[int]]:
    """Each rank's positions, longest first: every sample goes to the rank with the fewest tokens so far."""
    shares: list[list[int]] = [[] for _ in range(world_size)]
    loads = [0] * world_size
    for position in sorted(members, key=lambda member: (-lengths[member], member)):
        rank = loads.index(min(loads))
        shares[rank].append(position)
        loads[rank] += lengths[position]
    return shares


def _equally_many(cuts: Sequence[list[list[int]]]) -> list[list[list[int]]]:
    """Micro-batches per rank, equally many for all, the shortest ranks filled up with empty ones."""
    count = max(map(len, cuts))
    return [
        micro_batches + [[]] * (count - len(micro_batches))
        for micro_batches in (_split_up(cut, count) for cut in cuts)
    ]


def _cut(share: Sequence[int], lengths: Sequence[int], micro_batch_tokens: int) -> list[list[int]]:
    """Runs of a longest-first list whose padded size stays within the bound."""
    micro_batches: list[list[int]] = []
    for position in share:
        widest = lengths[micro_batches[-1][0]] if micro_batches else 0
        if micro_batches and widest * (len(micro_batches[-1]) + 1) <= micro_batch_tokens:
            micro_batches[-1].append(position)
        else:
            micro_batches.append([position])
    return micro_batches


def _cut_packed(share: Sequence[int], lengths: Sequence[int], micro_batch_tokens: int) -> list[list[int]]:
    """Parts of a longest-first list whose rows stay within the bound: each takes what finds room in them."""
    micro_batches: list[list[int]] = []
    rest = list(share)
    while rest:
        widest = lengths[rest[0]]
        max_rows = max(micro_batch_tokens // widest, 1) if widest else len(rest)
        rows = pack_rows([lengths[position] for position in rest], widest, max_rows=max_rows)
        taken = set(chain.from_iterable(rows))
        micro_batches.append([position for index, position in enumerate(rest) if index in taken])
        rest = [position for index, position in enumerate(rest) if index not in taken]
    return micro_batches


def _split_up(micro_batches: list[list[int]], count: int) -> list[list[int]]:
    """Halve the largest part until there are `count`, as far as single samples allow."""
    micro_batches = list(micro_batches)
    while len(micro_batches) < count:
        index = max(range(len(micro_batches)), key=lambda at: len(micro_batches[at]), default=-1)
        if index < 0 or len(micro_batches[index]) < 2:  # noqa: PLR2004 - one sample cannot be halved
            break
        largest = micro_batches[index]
        middle = len(largest) // 2
        micro_batches[index : index + 1] = [largest[:middle], largest[middle:]]
    return micro_batches
