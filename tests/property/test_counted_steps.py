"""Offsets of a mirrored ledger, counted: never larger than they were, and never before what a task had read."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from consumers.counted_steps import CountedSteps

transactions = st.lists(
    st.tuples(st.integers(1, 3), st.booleans(), st.sampled_from([0, 0, 1])), min_size=1, max_size=12
)
"""Parts of each transaction, whether it was committed, and by how much its ledger record raises the version."""


@dataclass
class Steps:
    """`steps` as its broker has it: offsets and versions of what readers see."""

    counted: CountedSteps = field(default_factory=CountedSteps)
    offsets: list[int] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    end: int = 0

    def write(self, num_parts: int, *, is_committed: bool, raised: int) -> None:
        if is_committed:
            self.offsets += range(self.end, self.end + num_parts)
            version = (self.versions[-1] if self.versions else 0) + raised
            self.versions += [version] * num_parts
            for part in range(num_parts):
                self.counted.add(version, ends_transaction=part == num_parts - 1)
        self.end += num_parts + 1

    def read_up_to(self, position: int) -> int | None:
        """The version that a dispatcher knows which has read so far."""
        known = [
            version for offset, version in zip(self.offsets, self.versions, strict=True) if offset < position
        ]
        return known[-1] if known else None


def written(parts: list[tuple[int, bool, int]]) -> Steps:
    steps = Steps()
    for num_parts, is_committed, raised in parts:
        steps.write(num_parts, is_committed=is_committed, raised=raised)
    return steps


@given(transactions)
def test_without_aborted_transactions_they_are_those_of_the_original(
    parts: list[tuple[int, bool, int]],
) -> None:
    steps = written([(num_parts, True, raised) for num_parts, _, raised in parts])
    assert (list(steps.counted.offsets), steps.counted.end) == (steps.offsets, steps.end)
    assert steps.counted.num_aborted == 0


@given(transactions, st.data())
def test_they_are_bounds_and_agree_with_every_task(
    parts: list[tuple[int, bool, int]], data: st.DataObject
) -> None:
    steps = written(parts)
    for position in data.draw(st.lists(st.integers(0, steps.end), max_size=8)):
        if (version := steps.read_up_to(position)) is not None:
            steps.counted.read_at(version, position)
            assert position <= steps.counted.end
    counted = list(steps.counted.offsets)
    assert all(one <= other for one, other in zip(counted, steps.offsets, strict=True))
    assert all(one < other for one, other in pairwise([*counted, steps.counted.end]))
    assert steps.counted.end <= steps.end
    assert (
        0 <= steps.counted.num_aborted <= sum(num_parts + 1 for num_parts, is_kept, _ in parts if not is_kept)
    )


def test_a_task_shows_what_was_aborted_before_the_version_that_it_does_not_know() -> None:
    counted = CountedSteps()
    for version in range(3):
        counted.add(version, ends_transaction=True)
    counted.read_at(1, 7)
    assert (list(counted.offsets), counted.end, counted.num_aborted) == ([0, 2, 7], 9, 3)


def test_a_task_of_a_version_that_is_not_there_shifts_nothing() -> None:
    counted = CountedSteps()
    counted.add(0, ends_transaction=True)
    counted.read_at(1, 7)
    assert (list(counted.offsets), counted.end) == ([0], 2)
