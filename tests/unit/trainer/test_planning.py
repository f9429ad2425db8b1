"""Batch planning, turned by hand."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas import MicroBatch
from trainer.step.planning import first_pass, padding_share, plan_step, step_seed


def plan(
    group_lengths: list[list[int]], *, minibatches: int = 2, ranks: int = 1, tokens: int = 100, seed: int = 0
) -> tuple[MicroBatch, ...]:
    return plan_step(
        group_lengths, num_minibatches=minibatches, world_size=ranks, micro_batch_tokens=tokens, seed=seed
    )


lengths = st.lists(st.lists(st.integers(1, 40), min_size=1, max_size=5), min_size=1, max_size=12)


@given(lengths, st.integers(1, 5), st.integers(1, 4), st.integers(1, 120), st.integers(0, 2**63 - 1))
def test_every_sample_is_planned_exactly_once_within_bounds(
    group_lengths: list[list[int]], minibatches: int, ranks: int, tokens: int, seed: int
) -> None:
    flat = [length for group in group_lengths for length in group]
    parts = plan(group_lengths, minibatches=minibatches, ranks=ranks, tokens=tokens, seed=seed)
    assert sorted(position for part in parts for position in part.positions) == list(range(len(flat)))
    for part in parts:
        padded = max((flat[position] for position in part.positions), default=0) * len(part.positions)
        assert padded <= tokens or len(part.positions) == 1
    assert {part.minibatch for part in parts} == set(range(min(minibatches, len(group_lengths))))
    counts = Counter((part.minibatch, part.rank) for part in parts)
    for minibatch in {part.minibatch for part in parts}:
        assert len({counts[(minibatch, rank)] for rank in range(ranks)}) == 1


@given(lengths, st.integers(1, 5))
def test_groups_are_never_torn_between_minibatches(group_lengths: list[list[int]], minibatches: int) -> None:
    minibatch_of = {
        position: part.minibatch
        for part in plan(group_lengths, minibatches=minibatches)
        for position in part.positions
    }
    start = 0
    for group in group_lengths:
        assert len({minibatch_of[start + index] for index in range(len(group))}) == 1
        start += len(group)


def test_minibatches_have_equally_many_groups() -> None:
    parts = plan([[1]] * 10, minibatches=4)
    assert sorted(len(part.positions) for part in parts) == [2, 2, 3, 3]


def test_each_pass_names_every_sample_once_and_deals_the_groups_anew() -> None:
    lengths = [[5 + group, 6] for group in range(10)]
    once, plan = (
        plan_step(
            lengths, num_minibatches=2, world_size=2, micro_batch_tokens=30, seed=3, num_epochs=num_epochs
        )
        for num_epochs in (1, 3)
    )
    assert plan[: len(once)] == once == first_pass(plan)
    counts = Counter(position for part in plan for position in part.positions)
    assert counts == dict.fromkeys(range(20), 3)
    assert sorted({part.minibatch for part in plan}) == list(range(6))
    dealt = [
        frozenset(position for part in plan if part.minibatch == number for position in part.positions)
        for number in range(6)
    ]
    assert len({frozenset(dealt[2 * epoch : 2 * epoch + 2]) for epoch in range(3)}) == 3


def test_the_same_seed_gives_the_same_plan_and_another_seed_another() -> None:
    group_lengths = [[3, 4], [5, 6], [7, 8], [9, 1]]
    assert plan(group_lengths, seed=1) == plan(group_lengths, seed=1)
    assert len({plan(group_lengths, seed=seed) for seed in range(20)}) > 1


def test_samples_of_similar_length_share_a_micro_batch() -> None:
    parts = plan([[10, 1, 10, 1]], minibatches=1, tokens=20)
    assert [part.positions for part in parts] == [(0, 2), (1, 3)]
    assert padding_share(parts, [10, 1, 10, 1]) == 0.0


def test_a_sample_longer_than_the_bound_is_alone() -> None:
    parts = plan([[50, 2, 2]], minibatches=1, tokens=20)
    assert [part.positions for part in parts] == [(0,), (1, 2)]


def test_ranks_are_balanced_in_tokens() -> None:
    parts = plan([[8, 4, 4, 2, 2, 4]], minibatches=1, ranks=2)
    flat = [8, 4, 4, 2, 2, 4]
    loads = Counter[int]()
    for part in parts:
        loads[part.rank] += sum(flat[position] for position in part.positions)
    assert loads == {0: 12, 1: 12}


def test_a_rank_without_samples_gets_an_empty_micro_batch() -> None:
    parts = plan([[5]], minibatches=1, ranks=2)
    assert [(part.rank, part.positions) for part in parts] == [(0, (0,)), (1, ())]


def test_padding_is_counted() -> None:
    parts = [MicroBatch(minibatch=0, rank=0, positions=(0, 1)), MicroBatch(minibatch=0, rank=1, positions=())]
    assert padding_share(parts, [4, 2]) == pytest.approx(0.25)
    assert padding_share([], []) == 0.0


def test_step_seeds_are_fixed_by_run_seed_and_version() -> None:
    assert step_seed(0, 1) == step_seed(0, 1)
    assert len({step_seed(run, version) for run in range(10) for version in range(10)}) == 100
    assert all(0 <= step_seed(7, version) < 2**63 for version in range(100))
