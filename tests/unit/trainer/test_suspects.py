"""Who is at fault when training fails, over many starts: with samples that fail, and with an engine that does."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.suspects import CloseGuilty, NotAtFault, Suspects, Suspicion, Train, TryAlone

if TYPE_CHECKING:
    from collections.abc import Collection

most_starts = 40


class World:
    """A trainer that is started again and again, at one version; `say` tells how a step on some groups fails.

    A step that fails ends it; after a failed trial the engine can be brought back, unless `is_fragile`.
    """

    def __init__(
        self, ready: Collection[str], poison: Collection[str], *, is_broken: bool, is_fragile: bool
    ) -> None:
        self.ready = sorted(ready)
        self.poison = frozenset(poison)
        self.is_broken = is_broken
        self.is_fragile = is_fragile
        self.closed: set[str] = set()
        self.note = Suspects()
        self.has_trained = False
        self.was_told = False

    def start(self, groups_per_batch: int) -> None:
        """One life of the process, from what the note says."""
        self.note = Suspects({key: Suspicion(**asdict(found)) for key, found in self.note.groups.items()})
        has_tried = False
        while len(self.ready) >= groups_per_batch:
            batch = self.ready[:groups_per_batch]
            move = self.note.next_move(batch, self.ready)
            if isinstance(move, TryAlone):
                assert move.keys
                has_tried = True
                if not all(self.goes_well_alone(key) for key in move.keys) and self.is_fragile:
                    return
                continue
            if isinstance(move, NotAtFault):
                self.was_told = True
            if isinstance(move, NotAtFault) or has_tried:
                return
            if isinstance(move, Train):
                self.note.begin(batch)
                self.has_trained = not self.fails(batch)
                return
            self.close(move)

    def goes_well_alone(self, key: str) -> bool:
        self.note.begin_trial(key)
        self.note.tried(key, "fails" if self.fails([key]) else None)
        return self.note.groups[key].is_cleared

    def fails(self, batch: Collection[str]) -> bool:
        return self.is_broken or not self.poison.isdisjoint(batch)

    def close(self, move: CloseGuilty) -> None:
        self.closed.update(move.said)
        self.ready = [key for key in self.ready if key not in move.said]


many_groups = st.integers(4, 8).map(lambda number: [f"g{index}" for index in range(number)])


@given(st.data(), st.integers(1, 3), st.booleans())
def test_samples_that_fail_are_closed_no_others_are_and_training_goes_on(
    data: st.DataObject, groups_per_batch: int, is_fragile: bool
) -> None:
    ready = data.draw(many_groups)
    poison = data.draw(st.sets(st.sampled_from(ready), max_size=min(2, len(ready) - groups_per_batch)))
    world = World(ready, poison, is_broken=False, is_fragile=is_fragile)
    for _ in range(most_starts):
        world.start(groups_per_batch)
        if world.has_trained:
            break
        if data.draw(st.booleans()):
            world.ready = sorted({*world.ready, f"h{data.draw(st.integers(0, 2))}"})
    assert world.has_trained
    assert world.closed <= poison


@given(st.data(), st.integers(1, 3), st.booleans())
def test_an_engine_that_always_fails_costs_one_group_at_most_and_is_named(
    data: st.DataObject, groups_per_batch: int, is_fragile: bool
) -> None:
    ready = data.draw(many_groups)
    world = World(ready, (), is_broken=True, is_fragile=is_fragile)
    for _ in range(most_starts):
        world.start(groups_per_batch)
        if data.draw(st.booleans()):
            world.ready = sorted(
                {*world.ready, f"{data.draw(st.sampled_from('ah'))}{data.draw(st.integers(0, 3))}"}
            )
        if data.draw(st.booleans()) and len(world.ready) > groups_per_batch:
            world.ready.remove(data.draw(st.sampled_from(world.ready)))
    assert not world.has_trained
    assert len(world.closed) <= 1
    assert world.was_told


def failed_twice(*keys: str) -> Suspects:
    note = Suspects()
    note.begin(keys)
    note.begin(keys)
    return note


def test_suspects_are_tried_that_are_ready_but_not_in_the_batch() -> None:
    note = failed_twice("a", "b")
    assert note.next_move(["new", "a"], ["new", "a", "b"]) == TryAlone(("a", "b"))


def test_a_batch_without_a_suspect_is_trained_while_others_wait() -> None:
    assert failed_twice("a").next_move(["b"], ["a", "b"]) == Train()


def test_what_one_failure_says_is_no_suspicion() -> None:
    note = Suspects()
    note.begin(["a", "b"])
    assert note.next_move(["a", "b"], ["a", "b"]) == Train()


def test_a_suspect_that_is_gone_before_its_trial_holds_no_round_up() -> None:
    note = failed_twice("a", "b")
    note.begin_trial("a")
    note.tried("a", "fails")
    assert note.next_move(["a", "c"], ["a", "c"]) == TryAlone(("c",))


def test_of_a_suspect_that_was_tried_before_it_was_gone_the_outcome_counts() -> None:
    note = failed_twice("a", "b")
    for key, said in (("a", "fails"), ("b", None)):
        note.begin_trial(key)
        note.tried(key, said)
    assert note.next_move(["a", "c"], ["a", "c"]) == CloseGuilty({"a": "fails"})


def test_nobody_left_to_compare_with_the_first_to_fail_is_guilty_and_the_second_is_not() -> None:
    note = failed_twice("a")
    note.begin_trial("a")
    note.tried("a", "fails")
    assert note.next_move(["a"], ["a"]) == CloseGuilty({"a": "fails"})
    note.begin(["b"])
    note.begin(["b"])
    note.begin_trial("b")
    note.tried("b", "fails as well")
    assert note.next_move(["b"], ["b"]) == NotAtFault("fails as well")


@pytest.mark.parametrize("num_deaths", [1, 2])
def test_a_process_that_dies_in_two_trials_of_a_group_says_what_an_error_does(num_deaths: int) -> None:
    note = failed_twice("a", "b")
    note.begin_trial("b")
    note.tried("b", None)
    for _ in range(num_deaths):
        note.begin_trial("a")
    expected = TryAlone(("a",)) if num_deaths == 1 else CloseGuilty({"a": "the process died"})
    assert note.next_move(["a", "b"], ["a", "b"]) == expected
